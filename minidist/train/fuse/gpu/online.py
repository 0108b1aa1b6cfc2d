"""Online softmax and cross-entropy: one program a row, which passes by in blocks, of any length."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .pointwise import wide

BLOCK = 1024


@triton.jit
def _normalizer(row, V, BLOCK: tl.constexpr):
    """m = max x and s = Σ exp(x − m) of the row, in one reading."""
    column = tl.arange(0, BLOCK)
    first = wide(tl.load(row + column, column < V, -float("inf")))
    m = tl.maximum(tl.max(first), -3e38)  # finite: exp(−inf − m) is 0, not nan
    s = tl.sum(tl.exp(first - m))
    for start in range(BLOCK, V, BLOCK):
        x = wide(tl.load(row + start + column, start + column < V, -float("inf")))
        peak = tl.maximum(m, tl.max(x))
        s = s * tl.exp(m - peak) + tl.sum(tl.exp(x - peak))
        m = peak
    return m, s


@triton.jit
def _softmax(x, y, V, BLOCK: tl.constexpr):
    column, row = tl.arange(0, BLOCK), tl.program_id(0).to(tl.int64) * V
    m, s = _normalizer(x + row, V, BLOCK)
    for start in range(0, V, BLOCK):
        there = start + column < V
        part = wide(tl.load(x + row + start + column, there, 0.0))
        tl.store(y + row + start + column, tl.exp(part - m) / s, there)


@triton.jit
def _softmax_backward(y, dy, dx, V, BLOCK: tl.constexpr):
    column, row = tl.arange(0, BLOCK), tl.program_id(0).to(tl.int64) * V
    both = wide(tl.load(y + row + column, column < V, 0.0)) * wide(
        tl.load(dy + row + column, column < V, 0.0)
    )
    for start in range(BLOCK, V, BLOCK):
        there = start + column < V
        part = wide(tl.load(y + row + start + column, there, 0.0))
        both += part * wide(tl.load(dy + row + start + column, there, 0.0))
    total = tl.sum(both)
    for start in range(0, V, BLOCK):
        there, at = start + column < V, row + start + column
        up = wide(tl.load(dy + at, there, 0.0))
        tl.store(dx + at, wide(tl.load(y + at, there, 0.0)) * (up - total), there)


@triton.jit
def _cross_entropy(x, targets, losses, lses, V, IGNORE, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + r)
    m, s = _normalizer(x + r * V, V, BLOCK)
    lse = m + tl.log(s)
    hit = wide(tl.load(x + r * V + tl.where(target == IGNORE, 0, target)))
    tl.store(losses + r, tl.where(target == IGNORE, 0.0, lse - hit))
    tl.store(lses + r, lse)


@triton.jit
def _cross_entropy_backward(dlosses, x, targets, lses, dx, V, IGNORE, BLOCK: tl.constexpr):
    column, r = tl.arange(0, BLOCK), tl.program_id(0).to(tl.int64)
    target, lse = tl.load(targets + r), tl.load(lses + r)
    scale = tl.where(target == IGNORE, 0.0, tl.load(dlosses + r))
    for start in range(0, V, BLOCK):
        there = start + column < V
        p = tl.exp(wide(tl.load(x + r * V + start + column, there, 0.0)) - lse)
        tl.store(
            dx + r * V + start + column,
            (p - tl.where(start + column == target, 1.0, 0.0)) * scale,
            there,
        )


def _flat(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).contiguous()


def softmax(x: Tensor) -> Tensor:
    flat = _flat(x)
    y = torch.empty_like(flat)
    _softmax[flat.shape[:1]](flat, y, flat.shape[1], BLOCK=BLOCK)
    return y.view(x.shape)


def softmax_backward(y: Tensor, dy: Tensor) -> Tensor:
    flat = _flat(y)
    dx = torch.empty_like(flat)
    _softmax_backward[flat.shape[:1]](flat, _flat(dy), dx, flat.shape[1], BLOCK=BLOCK)
    return dx.view(y.shape)


def cross_entropy(logits: Tensor, targets: Tensor, ignore: int) -> tuple[Tensor, Tensor]:
    """A target that is no class reads past its row: check them before, a GPU does not."""
    flat = _flat(logits)
    losses = flat.new_empty(targets.shape, dtype=torch.promote_types(flat.dtype, torch.float32))
    lse = torch.empty_like(losses)
    _cross_entropy[flat.shape[:1]](
        flat, targets.contiguous(), losses, lse, flat.shape[1], ignore, BLOCK=BLOCK
    )
    return losses, lse


def cross_entropy_backward(
    dloss: Tensor, logits: Tensor, targets: Tensor, lse: Tensor, ignore: int
) -> Tensor:
    flat = _flat(logits)
    dx = torch.empty_like(flat)
    _cross_entropy_backward[flat.shape[:1]](
        dloss.contiguous(),
        flat,
        targets.contiguous(),
        lse.contiguous(),
        dx,
        flat.shape[1],
        ignore,
        BLOCK=BLOCK,
    )
    return dx.view(logits.shape)
