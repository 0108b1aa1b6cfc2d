"""Bias and GELU in one pass, forward and backward: between the two linear layers of a transformer's MLP.

Problem: z = x + b and y = z·Φ(z) are two launches that move 4N elements, and autograd keeps z.
Idea: one pass reads x and writes y; backward reads x again and forms z anew, in registers.

    "none"   Φ(z) = (1 + erf(z/√2))/2                  dy/dz = Φ(z) + z·φ(z)
    "tanh"   Φ(z) ≈ (1 + tanh(√(2/π)(z + 0.044715z³)))/2

                PyTorch's            here              of N elements; the bias (H,) beside it is small
    forward     2 launches, 4N       1 launch, 2N      read x, write y
    backward    2 launches, 4N       1 launch, 3N      read x and dy, write dx; the bias' sum on the way

Kept for backward: x, where PyTorch keeps x + b: the same. fp16 and bf16 are worked on in fp32. Sources: Hendrycks and
Gimpel 2016, "GELU", section 2; Shoeybi et al. 2019, "Megatron-LM", whose fused bias and GELU this is.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .compiled import Kernel, filled
from .operator import columns, differentiable, exact, operator, rows

WAYS = ("none", "tanh")
CUBE = 0.044715


def bias_gelu_plain(x: Tensor, bias: Tensor, tanh: bool = False) -> Tensor:
    """The same by PyTorch's operators, each step a launch."""
    z = exact(x) + exact(bias)
    if tanh:
        y = 0.5 * z * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + CUBE * z * z * z)))
    else:
        y = 0.5 * z * (1 + torch.erf(z * math.sqrt(0.5)))
    return y.to(x.dtype)


def bias_gelu_backward_plain(
    dy: Tensor, x: Tensor, bias: Tensor, tanh: bool
) -> tuple[Tensor, Tensor]:
    """dx (rows, H) and dbias (H,)."""
    z = exact(x) + exact(bias)
    if tanh:
        t = torch.tanh(math.sqrt(2 / math.pi) * (z + CUBE * z * z * z))
        slope = 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * math.sqrt(2 / math.pi) * (
            1 + 3 * CUBE * z * z
        )
    else:
        slope = 0.5 * (1 + torch.erf(z * math.sqrt(0.5))) + z * torch.exp(-0.5 * z * z) / math.sqrt(
            2 * math.pi
        )
    dz = exact(dy) * slope
    return dz.to(x.dtype), dz.sum(0).to(bias.dtype)


def _examples(*shapes: tuple) -> Callable:
    return lambda dtype: [(*filled(*shapes, dtype=dtype), tanh) for tanh in (False, True)]


FORWARD = Kernel(bias_gelu_plain, _examples((384, 1024), (1024,)))
BACKWARD = Kernel(bias_gelu_backward_plain, _examples((384, 1024), (384, 1024), (1024,)))


@operator("bias_gelu", fake=lambda x, bias, tanh: x.new_empty(x.shape))
def _bias_gelu(x: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    return FORWARD(rows(x), bias.contiguous(), tanh).view(x.shape)


@operator(
    "bias_gelu_backward",
    fake=lambda dy, x, bias, tanh: (x.new_empty(x.shape), bias.new_empty(bias.shape)),
)
def _bias_gelu_backward(dy: Tensor, x: Tensor, bias: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    dx, dbias = BACKWARD(rows(dy), rows(x), bias.contiguous(), tanh)
    return dx.view(x.shape), dbias


def _keep(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.tanh = inputs[2]


differentiable(
    _bias_gelu,
    lambda ctx, dy: (*_bias_gelu_backward(dy, *ctx.saved_tensors, ctx.tanh), None),
    _keep,
)


def bias_gelu(x: Tensor, bias: Tensor, approximate: str = "none") -> Tensor:
    """`F.gelu(x + bias, approximate=approximate)`, (…, H) and (H,) → (…, H), in the type of x.

    Raises ValueError for another `approximate` than "none" and "tanh", other shapes or devices.
    """
    if approximate not in WAYS:
        raise ValueError(f"approximate is 'none' or 'tanh', not {approximate!r}")
    columns(x, bias=bias)
    return _bias_gelu(x, bias, approximate == "tanh")
