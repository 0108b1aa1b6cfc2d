"""LayerNorm in one pass over each row, forward and backward.

Problem: written out, y = (x − mean)/√(var + ε)·w + b is nine launches over all of x.
Idea: a row fits in registers or cache: its mean, its variance and its result take one reading of x. Kept for backward
are x and two numbers a row, from which the rest is formed again:

    x̂ = (x − mean)·rstd     g = dy·w     dx = rstd·(g − mean(g) − x̂·mean(g·x̂))     dw = Σ dy·x̂     db = Σ dy

               launches   bytes, of N = rows·H elements
    forward    1          2N, with w, b (H each) and mean, rstd (a number a row each)
    backward   1          3N: reads x and dy, writes dx; dw and db are summed on the way

fp16 and bf16 are worked on in fp32, in which mean and rstd are kept. Invariant: the variance is that of x − mean, never
mean(x²) − mean², which loses all digits where the mean is large. Source: Ba et al. 2016, section 3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .compiled import Kernel, filled
from .operator import alike, columns, differentiable, exact, operator, rows


def layer_norm_plain(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """The same by PyTorch's operators, each step a launch: (…, H) → (…, H)."""
    return _normalized(x, weight, bias, (eps,))[0]


def _normalized(
    x: Tensor, weight: Tensor, bias: Tensor, eps: tuple[float]
) -> tuple[Tensor, Tensor, Tensor]:
    """y (…, H), mean (…) and rstd (…)."""
    wide, (eps,) = exact(x), eps
    mean = wide.mean(-1, keepdim=True)
    centred = wide - mean
    rstd = ((centred * centred).mean(-1, keepdim=True) + eps).rsqrt()
    return (
        (centred * rstd * exact(weight) + exact(bias)).to(x.dtype),
        mean.squeeze(-1),
        rstd.squeeze(-1),
    )


def _gradients(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """dx (rows, H), dw (H,), db (H,)."""
    hat, wide = (exact(x) - mean[:, None]) * rstd[:, None], exact(dy)
    g = wide * exact(weight)
    dx = rstd[:, None] * (g - g.mean(-1, keepdim=True) - hat * (g * hat).mean(-1, keepdim=True))
    return dx.to(x.dtype), (wide * hat).sum(0).to(weight.dtype), wide.sum(0).to(weight.dtype)


def _backward_example(dtype: torch.dtype) -> tuple[Tensor, ...]:
    row = filled((384,), (384,), dtype=torch.promote_types(dtype, torch.float32))
    return *filled((384, 1024), (384, 1024), (1024,), dtype=dtype), *row


FORWARD = Kernel(
    _normalized, lambda dtype: [(*filled((384, 1024), (1024,), (1024,), dtype=dtype), (1e-5,))]
)
BACKWARD = Kernel(_gradients, lambda dtype: [_backward_example(dtype)])


def _fake(x, weight, bias, eps):
    mean = x.new_empty(x.shape[:-1], dtype=torch.promote_types(x.dtype, torch.float32))
    return x.new_empty(x.shape), mean, torch.empty_like(mean)


def _fake_backward(dy, x, weight, mean, rstd):
    return x.new_empty(x.shape), weight.new_empty(weight.shape), weight.new_empty(weight.shape)


@operator("layer_norm", fake=_fake)
def _layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    y, mean, rstd = FORWARD(rows(x), weight.contiguous(), bias.contiguous(), (eps,))
    return y.view(x.shape), mean.view(x.shape[:-1]), rstd.view(x.shape[:-1])


@operator("layer_norm_backward", fake=_fake_backward)
def _layer_norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    dx, dweight, dbias = BACKWARD(
        rows(dy), rows(x), weight.contiguous(), mean.reshape(-1), rstd.reshape(-1)
    )
    return dx.view(x.shape), dweight, dbias


differentiable(
    _layer_norm,
    lambda ctx, dy: (*_layer_norm_backward(dy, *ctx.saved_tensors), None),
    lambda ctx, inputs, output: ctx.save_for_backward(*inputs[:2], *output[1:]),
)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """`F.layer_norm` over the last dimension: (…, H), (H,), (H,) → (…, H), in the type of x.

    Weight and bias are of one type, which need not be that of x. Raises ValueError for other shapes or devices.
    """
    columns(x, weight=weight, bias=bias)
    alike("weight", weight, bias=bias)
    return _layer_norm(x, weight, bias, eps)[0]
