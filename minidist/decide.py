"""Where a value steers: the one place that reads it.

An overflow check, a threshold, an adaptive period: the program goes one way or the other by a number in a tensor. A
meta tensor has none, so whoever asks says what to do then, and a step on the meta device runs to its end. On a GPU
the reading waits for all that was started before: one synchronization, so ask once a step, not once a tensor.
"""

from __future__ import annotations

from torch import Tensor


def decide(x: Tensor, on_meta: bool | int | float) -> bool | int | float:
    """The one element of `x`, as a Python number; `on_meta` where `x` is on the meta device and has no value.

    Raises ValueError for a tensor of another number of elements.

    >>> import torch
    >>> from minidist.decide import decide
    >>> gradient = torch.tensor([1.0, float("inf")])
    >>> decide(gradient.isfinite().all(), on_meta=True)  # an overflow: skip the step
    False
    >>> decide(torch.ones((), device="meta"), on_meta=True)  # no values: go on
    True
    """
    if x.numel() != 1:
        raise ValueError(
            f"one number decides, not {x.numel()}: reduce {tuple(x.shape)} to 1 element first"
        )
    return on_meta if x.is_meta else x.item()


def decide_all(x: Tensor, on_meta: list) -> list:
    """The numbers of `x`, (k,), as Python's; `on_meta`, k of them, where it has no values. One synchronization for all.

    Raises ValueError where `on_meta` has another number of them.

    >>> import torch
    >>> from minidist.decide import decide_all
    >>> norms = torch.tensor([3.0, 4.0])
    >>> decide_all(norms, on_meta=[1.0, 1.0]), decide_all(norms.to("meta"), on_meta=[1.0, 1.0])
    ([3.0, 4.0], [1.0, 1.0])
    """
    if x.shape != (len(on_meta),):
        raise ValueError(f"{len(on_meta)} numbers stand for {tuple(x.shape)} on the meta device")
    return on_meta if x.is_meta else x.tolist()
