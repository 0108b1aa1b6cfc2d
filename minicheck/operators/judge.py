"""Is a tensor near enough to the right one? If not: what does the mistake look like?"""

from __future__ import annotations

import torch
from torch import Tensor

from ..data_parallel.averages import near
from ..plain import Other, kind_of
from ..wrong import Wrong

FORBIDDEN = (
    "minidist.study",
    "minidist.train",
    "minidist.parallel",
    "minicheck.operators.oracle",
    "minidist.comm.charge.charge",
)


def number(got) -> bool:
    return isinstance(got, int | float) and not isinstance(got, bool)


def kind(got) -> str:
    """Of what type it is, in words."""
    return kind_of(got)


def close(got, want: Tensor, name: str, looks: dict[str, Tensor], otherwise: str) -> None:
    """Raise Wrong unless `got` is a tensor of `want`'s shape and dtype, and equal but for rounding.

    looks: what it looks like: the numbers that it would be.  otherwise: said where it looks like none.
    """
    if got is None:
        raise Wrong(f"{name} is None. Is there a `return`?")
    if isinstance(got, Other) and got.kind.startswith("meta"):
        raise Wrong(
            f"{name} came out of no operator that the meter saw: compute it with PyTorch, in the open."
        )
    if not isinstance(got, Tensor):
        raise Wrong(f"{name} is of type {kind(got)}, and should be a tensor.")
    for what, is_, should in (
        ("shape", tuple(got.shape), tuple(want.shape)),
        ("dtype", got.dtype, want.dtype),
    ):
        if is_ != should:
            raise Wrong(f"{name} has {what} {is_}, and should have {should}.")
    if near(got, want) and got.isfinite().all():
        return
    found = next((text for text, x in looks.items() if _as(got, x) and not near(x, want)), None)
    if found is None and not got.isfinite().all():
        found = "There is inf or nan in it: is m subtracted before exp? And is −inf − −inf avoided?"
    at = (got - want).abs().nan_to_num(torch.inf).reshape(-1).argmax()
    raise Wrong(
        f"{name} is wrong: {got.reshape(-1)[at]:.6g} where {want.reshape(-1)[at]:.6g} should be. "
        f"{found or otherwise}"
    )


def _as(got: Tensor, look: Tensor) -> bool:
    return (
        got.shape == look.shape
        and torch.equal(got.isfinite(), look.isfinite())
        and near(got.nan_to_num(0, 0, 0), look.nan_to_num(0, 0, 0).to(got.dtype))
    )


def kept(after, before: Tensor, name: str) -> None:
    """Raise Wrong if an argument was written to."""
    if not isinstance(after, Tensor) or not after.equal(before):
        raise Wrong(f"{name} was changed, and belongs to the caller: work on a copy.")


def told(seen: dict, name: str) -> None:
    """Raise Wrong where a result was made of numbers taken out of tensors."""
    if seen["left"] > seen["may_leave"]:
        raise Wrong(
            f"{name} is right, but {seen['left']} numbers were taken out of tensors (item(), or an if), one by "
            "one: compute with whole tensors."
        )
