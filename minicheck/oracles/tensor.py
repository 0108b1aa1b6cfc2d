"""The serial layers of lesson 14's exercises, and their gradients."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from minidist.split import uneven


def whole(rng: torch.Generator, *shape: int, short: bool = False) -> Tensor:
    """Whole numbers, whose sums are exact: float64 of ten digits, which float32 rounds; float32 of six if `short`."""
    digits = torch.randint(10**9, 10**10, shape, generator=rng)
    return (digits // 10**4).float() if short else digits.double()


def serial(function, inputs: list[Tensor], dy: Tensor | None) -> tuple[Tensor, list[Tensor]]:
    """Output and gradients of the whole, on one rank; dy None: of zeros."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    y = function(*leaves)
    return y.detach(), list(
        torch.autograd.grad(y, leaves, torch.zeros_like(y) if dy is None else dy)
    )


def mlp(x: Tensor, fc: Tensor, fc_bias: Tensor, proj: Tensor, proj_bias: Tensor) -> Tensor:
    return F.linear(F.gelu(F.linear(x, fc, fc_bias), approximate="tanh"), proj, proj_bias)


def cut(x: Tensor, n: int, dim: int) -> list[Tensor]:
    """The ranks' parts; the first are larger by one where n does not divide."""
    return [part.contiguous() for part in x.split(uneven(x.shape[dim], n), dim)]
