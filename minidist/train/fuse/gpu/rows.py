"""Bias and GELU, and LayerNorm: one program a row, which stays in registers, H rounded up to a power of two.

Backward also sums over rows, for the bias and the weight. A program takes every `programs`-th row and keeps its own
sums; those of all programs, (programs, H), are added afterwards, which is one small launch that no meter sees.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from .pointwise import number, wide

PROGRAMS = 256
ROOT = tl.constexpr(math.sqrt(2 / math.pi))
HALF = tl.constexpr(math.sqrt(0.5))
DENSITY = tl.constexpr(1 / math.sqrt(2 * math.pi))
CUBE = tl.constexpr(0.044715)


@triton.jit
def _tanh(x):
    e = tl.exp(-2 * tl.abs(x))  # at most 1: no overflow
    return tl.where(x < 0, -1.0, 1.0) * (1 - e) / (1 + e)


@triton.jit
def _bias_gelu(x, bias, y, H, TANH: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    there, row = column < H, tl.program_id(0).to(tl.int64) * H
    z = wide(tl.load(x + row + column, there)) + wide(tl.load(bias + column, there))
    half = _tanh((z + z * z * z * CUBE) * ROOT) if TANH else tl.erf(z * HALF)
    tl.store(y + row + column, 0.5 * z * (1 + half), there)


@triton.jit
def _bias_gelu_backward(dy, x, bias, dx, sums, rows, H, TANH: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    there = column < H
    b = wide(tl.load(bias + column, there, 0.0))
    total = tl.zeros_like(b)
    for r in range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):
        row = r * H
        z = wide(tl.load(x + row + column, there, 0.0)) + b
        if TANH:
            t = _tanh((z + z * z * z * CUBE) * ROOT)
            slope = 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * (1 + z * z * (3 * CUBE)) * ROOT
        else:
            slope = 0.5 * (1 + tl.erf(z * HALF)) + z * tl.exp(-0.5 * z * z) * DENSITY
        dz = wide(tl.load(dy + row + column, there, 0.0)) * slope
        tl.store(dx + row + column, dz, there)
        total += dz
    tl.store(sums + tl.program_id(0) * H + column, total, there)


@triton.jit
def _layer_norm(x, weight, bias, y, means, rstds, eps, H, BLOCK: tl.constexpr):
    column, r = tl.arange(0, BLOCK), tl.program_id(0).to(tl.int64)
    there = column < H
    row = wide(tl.load(x + r * H + column, there, 0.0))
    mean = tl.sum(row) / H
    centred = tl.where(there, row - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred) / H + tl.load(eps))
    scaled = centred * rstd * wide(tl.load(weight + column, there)) + wide(
        tl.load(bias + column, there)
    )
    tl.store(y + r * H + column, scaled, there)
    tl.store(means + r, mean)
    tl.store(rstds + r, rstd)


@triton.jit
def _layer_norm_backward(
    dy, x, weight, means, rstds, dx, dweights, dbiases, rows, H, BLOCK: tl.constexpr
):
    column = tl.arange(0, BLOCK)
    there = column < H
    w = wide(tl.load(weight + column, there, 0.0))
    dweight, dbias = tl.zeros_like(w), tl.zeros_like(w)
    for r in range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):
        row, rstd = r * H, tl.load(rstds + r)
        hat = tl.where(
            there, (wide(tl.load(x + row + column, there, 0.0)) - tl.load(means + r)) * rstd, 0.0
        )
        up = wide(tl.load(dy + row + column, there, 0.0))
        g = up * w
        tl.store(dx + row + column, rstd * (g - tl.sum(g) / H - hat * (tl.sum(g * hat) / H)), there)
        dweight += up * hat
        dbias += up
    tl.store(dweights + tl.program_id(0) * H + column, dweight, there)
    tl.store(dbiases + tl.program_id(0) * H + column, dbias, there)


def _flat(x: Tensor) -> tuple[Tensor, int, int, int]:
    """x (rows, H), rows, H and the block that holds a row."""
    flat = x.reshape(-1, x.shape[-1]).contiguous()
    return flat, *flat.shape, triton.next_power_of_2(x.shape[-1])


def _sums(like: Tensor, programs: int) -> Tensor:
    return like.new_zeros(
        programs, like.shape[-1], dtype=torch.promote_types(like.dtype, torch.float32)
    )


def bias_gelu(x: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    flat, rows, H, block = _flat(x)
    y = torch.empty_like(flat)
    _bias_gelu[(rows,)](flat, bias.contiguous(), y, H, TANH=tanh, BLOCK=block)
    return y.view(x.shape)


def bias_gelu_backward(dy: Tensor, x: Tensor, bias: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    flat, rows, H, block = _flat(x)
    programs = min(rows, PROGRAMS)
    dx, sums = torch.empty_like(flat), _sums(flat, programs)
    _bias_gelu_backward[(programs,)](
        _flat(dy)[0], flat, bias.contiguous(), dx, sums, rows, H, TANH=tanh, BLOCK=block
    )
    return dx.view(x.shape), sums.sum(0).to(bias.dtype)


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    flat, rows, H, block = _flat(x)
    y, (mean, rstd) = torch.empty_like(flat), _sums(flat[:, :1], 2 * rows).view(2, rows).unbind()
    _layer_norm[(rows,)](
        flat,
        weight.contiguous(),
        bias.contiguous(),
        y,
        mean,
        rstd,
        number(eps, flat),
        H,
        BLOCK=block,
    )
    return y.view(x.shape), mean.view(x.shape[:-1]), rstd.clone().view(x.shape[:-1])


def layer_norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    flat, rows, H, block = _flat(x)
    programs = min(rows, PROGRAMS)
    dx = torch.empty_like(flat)
    dweight = _sums(flat, programs)
    dbias = _sums(flat, programs)
    _layer_norm_backward[(programs,)](
        _flat(dy)[0],
        flat,
        weight.contiguous(),
        mean.contiguous(),
        rstd.contiguous(),
        dx,
        dweight,
        dbias,
        rows,
        H,
        BLOCK=block,
    )
    return dx.view(x.shape), dweight.sum(0).to(weight.dtype), dbias.sum(0).to(weight.dtype)
