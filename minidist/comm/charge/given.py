"""What an operator gives on meta tensors, where that is plain: a shape and a dtype.

PyTorch finds it in Python, step by step, with all its checks: 5 ms for the backward of a layer norm, a hundred times
the cost of charging it, and most of the time in which a large model is simulated. Here are the operators that a
transformer's training repeats. Whatever is not of the plainest form (contiguous, one dtype, sizes that match) is
left to PyTorch, with its errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .flops import Operator

IN_PLACE = {"add_", "sub_", "mul_", "div_", "addcmul_", "addcdiv_", "lerp_"}
ALIKE = {
    "add",
    "sub",
    "mul",
    "div",
    "addcmul",
    "addcdiv",
    "lerp",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "neg",
    "exp",
    "log",
    "abs",
    "sigmoid",
    "tanh",
    "relu",
    "silu",
    "sigmoid_backward",
    "tanh_backward",
    "threshold_backward",
    "silu_backward",
}


def called(known: Operator, func, args: tuple, kwargs: Mapping[str, Any]) -> Any:
    """What `func(*args, **kwargs)` returns, of which `known` is known."""
    out = None if known.outs else given(known.name, args, kwargs)
    return func(*args, **kwargs) if out is None else out


def given(name: str, args: tuple, kwargs: Mapping[str, Any]) -> Any:
    """What `name(*args, **kwargs)` gives on meta tensors; None: ask PyTorch."""
    if name in IN_PLACE:
        return args[0] if _fit(*args, *kwargs.values()) else None
    if name in ALIKE:
        return _alike(*args, *kwargs.values())
    rule = RULES.get(name)
    return None if rule is None else rule(*args, **kwargs)


def _fit(x: Tensor, *others) -> bool:
    """Whether an operator on each element of `x`, and of `others`, has only its sizes to check, and they are right."""
    if not isinstance(x, Tensor) or not x.is_meta:
        return False
    dtype, shape = x.dtype, x.shape
    if not dtype.is_floating_point or 0 in x.stride():
        return False
    for y in others:
        if not isinstance(y, Tensor):
            if type(y) not in (int, float):
                return False
        elif not y.is_meta or y.dtype != dtype or y.shape != shape:
            return False
    return True


def _plain(*xs) -> bool:
    """Whether all tensors among `xs` are contiguous ones on meta, of one floating dtype."""
    tensors = [x for x in xs if isinstance(x, Tensor)]
    return (
        bool(tensors)
        and tensors[0].dtype.is_floating_point
        and all(x.is_meta and x.is_contiguous() and x.dtype == tensors[0].dtype for x in tensors)
    )


def _alike(*args) -> Tensor | None:
    return torch.empty_like(args[0]) if _fit(*args) and _plain(*args) else None


def _gelu(*args, approximate: str = "none"):
    return _alike(*args) if approximate in ("none", "tanh") else None


def _layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
):
    k, shape = len(shape), tuple(shape)
    if not _plain(x, weight, bias) or x.shape[-k:] != shape or not _sized(shape, weight, bias):
        return None
    rows = (*x.shape[:-k], *[1] * k)
    wide = torch.promote_types(x.dtype, torch.float32)
    return torch.empty_like(x), x.new_empty(rows, dtype=wide), x.new_empty(rows, dtype=wide)


def _layer_norm_backward(
    grad: Tensor,
    x: Tensor,
    shape: list[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: list[bool],
):
    if (
        not _plain(grad, x, weight, bias)
        or grad.shape != x.shape
        or not _sized(tuple(shape), weight, bias)
    ):
        return None
    if (mask[1] and weight is None) or (mask[2] and bias is None):
        return None
    return tuple(
        torch.empty_like(y) if wanted else None
        for y, wanted in zip((x, weight, bias), mask, strict=True)
    )


def _sized(shape: tuple[int, ...], *xs: Tensor | None) -> bool:
    return all(x is None or x.shape == shape for x in xs)


def _addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta=1, alpha=1):
    if not (
        bias.dtype == a.dtype == b.dtype
        and a.is_meta
        and b.is_meta
        and bias.is_meta
        and bias.is_contiguous()
    ):
        return None
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0] or bias.shape != b.shape[1:]:
        return None
    return a.new_empty(a.shape[0], b.shape[1]) if a.dtype.is_floating_point else None


def _sum(x: Tensor, dim: list[int] | None = None, keepdim: bool = False, *, dtype=None):
    if not dim or dtype is not None or not _plain(x) or not all(-x.ndim <= d < x.ndim for d in dim):
        return None
    gone = {d % x.ndim for d in dim}
    if len(gone) < len(dim):
        return None
    sizes = [1 if d in gone else size for d, size in enumerate(x.shape) if keepdim or d not in gone]
    return x.new_empty(sizes)


RULES = {
    "gelu": _gelu,
    "gelu_backward": _gelu,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "addmm": _addmm,
    "sum": _sum,
}
