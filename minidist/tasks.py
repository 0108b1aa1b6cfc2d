"""Real data to learn from, without a download."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .text import Bytes, documents


class Task(NamedTuple):
    """Samples and classes to train on, and others to test on.

    >>> from minidist.tasks import digits
    >>> task = digits()
    >>> len(task.x), len(task.test_x), task.y.dtype
    (1437, 360, torch.int64)
    """

    x: Tensor  # (samples, features)
    y: Tensor  # (samples,) int64
    test_x: Tensor
    test_y: Tensor


def digits(dtype: torch.dtype = torch.float64) -> Task:
    """scikit-learn's handwritten digits: 1,437 images to train on, 360 to test on, always the same.

    x: (1437, 64), the grey values of 8×8 pixels from 0 to 1.  y: (1437,), 0 to 9.
    Source: Alpaydin and Kaynak 1998, UCI "Optical Recognition of Handwritten Digits".
    Raises ImportError, which says what to install, where scikit-learn is missing.

    >>> from minidist.tasks import digits
    >>> x, y, test_x, test_y = digits()
    >>> x.shape, x.min().item(), x.max().item()
    (torch.Size([1437, 64]), 0.0, 1.0)
    >>> len(set(y.tolist()))
    10
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            'the digits come with scikit-learn: pip install "minidist[course]"'
        ) from error
    images, classes = load_digits(return_X_y=True)
    # the one generator whose numbers never change
    order = np.random.RandomState(0).permutation(len(images))
    x = torch.from_numpy(images[order] / 16).to(dtype)
    y = torch.from_numpy(classes[order].astype(np.int64))
    return Task(x[:1437], y[:1437], x[1437:], y[1437:])


def text() -> Tensor:
    """The Python language reference, as Python's own help() shows it: (bytes,) int64, 0 to 255; 466,195 in 3.11.7.

    Always the same with one version of CPython. Equal pieces of it, in random order: `text.Samples`.

    >>> from minidist.tasks import text
    >>> tokens = text()
    >>> tokens.dtype, tokens.max().item() < 256
    (torch.int64, True)
    >>> "assert" in bytes(tokens.tolist()).decode()
    True
    """
    return torch.tensor(Bytes().encode("\n".join(documents())))
