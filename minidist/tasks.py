"""Real data to learn from, without a download."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Task(NamedTuple):
    """Samples and classes to train on, and others to test on."""

    x: Tensor  # (samples, features)
    y: Tensor  # (samples,) int64
    test_x: Tensor
    test_y: Tensor


def digits(dtype: torch.dtype = torch.float64) -> Task:
    """scikit-learn's handwritten digits: 1,437 images to train on, 360 to test on, always the same.

    x: (1437, 64), the grey values of 8×8 pixels from 0 to 1.  y: (1437,), 0 to 9.
    Source: Alpaydin and Kaynak 1998, UCI "Optical Recognition of Handwritten Digits".
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
    x, y = (
        torch.from_numpy(images[order] / 16).to(dtype),
        torch.from_numpy(classes[order].astype(np.int64)),
    )
    return Task(x[:1437], y[:1437], x[1437:], y[1437:])


def text() -> Tensor:
    """The Python language reference, as Python's own help() shows it: (bytes,) int64, 0 to 255; 466,195 in 3.11.7.

    Always the same with one version of CPython, which brings it along as `pydoc_data.topics`.
    """
    from pydoc_data.topics import topics

    whole = "\n".join(topics[name] for name in sorted(topics)).encode()
    return torch.frombuffer(bytearray(whole), dtype=torch.uint8).long()


def windows(
    tokens: Tensor, steps: int, batch: int, length: int, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Pieces of a text from random places, and what comes next: x and y, (steps, batch, length) each, y one ahead of x.

    Raises ValueError where the text has not more than `length` tokens.
    """
    if len(tokens) <= length:
        raise ValueError(f"{len(tokens)} tokens have no {length} with a next one")
    places = torch.randint(
        len(tokens) - length, (steps, batch, 1), generator=torch.Generator().manual_seed(seed)
    )
    pieces = tokens[places + torch.arange(length + 1)]
    return pieces[..., :-1].contiguous(), pieces[..., 1:].contiguous()
