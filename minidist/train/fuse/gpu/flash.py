"""Attention in tiles: in forward a program has one tile of queries of one head, in backward one tile of keys.

Backward adds to dq from all programs of a head at once, by atomic additions in float32, in no fixed order: dq may
differ in its last digits from run to run, as in FlashAttention. Products of fp16 and bf16 tiles are summed in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .pointwise import number, wide

LARGEST = 2**14
"""Bytes of a tile of queries or keys."""


@triton.jit
def _load(x, first, T, d, TILE: tl.constexpr, D: tl.constexpr):
    """Rows first … first + TILE of x (T, d); 0 where there are none."""
    row, column = first + tl.arange(0, TILE)[:, None], tl.arange(0, D)[None, :]
    return tl.load(x + row * d + column, (row < T) & (column < d), 0.0)


@triton.jit
def _store(x, value, first, T, d, TILE: tl.constexpr, D: tl.constexpr):
    row, column = first + tl.arange(0, TILE)[:, None], tl.arange(0, D)[None, :]
    tl.store(x + row * d + column, value, (row < T) & (column < d))


@triton.jit
def _scores(q, k, i, j, K, factor, CAUSAL: tl.constexpr, TILE: tl.constexpr):
    """A tile of scores times `factor`, wide; −inf for keys that are not there, or later than their query."""
    row, column = i + tl.arange(0, TILE)[:, None], j + tl.arange(0, TILE)[None, :]
    seen = (column < K) & (column <= row) if CAUSAL else (column < K) & (row >= 0)
    return tl.where(
        seen, wide(tl.dot(q, tl.trans(k), input_precision="ieee")) * factor, -float("inf")
    )


@triton.jit
def _attention(
    q, k, v, out, lse, scale, T, K, d, CAUSAL: tl.constexpr, TILE: tl.constexpr, D: tl.constexpr
):
    i, head = tl.program_id(0) * TILE, tl.program_id(1).to(tl.int64)
    qi, factor = _load(q + head * T * d, i, T, d, TILE, D), tl.load(scale)
    a = wide(tl.zeros((TILE, D), qi.dtype))
    l = tl.sum(a, 1)
    m = l - 3e38
    for j in range(0, tl.minimum(K, i + TILE) if CAUSAL else K, TILE):
        s = _scores(qi, _load(k + head * K * d, j, K, d, TILE, D), i, j, K, factor, CAUSAL, TILE)
        peak = tl.maximum(m, tl.max(s, 1))
        p, less = tl.exp(s - peak[:, None]), tl.exp(m - peak)
        l = l * less + tl.sum(p, 1)
        vj = _load(v + head * K * d, j, K, d, TILE, D)
        a = a * less[:, None] + tl.dot(p.to(vj.dtype), vj, input_precision="ieee")
        m = peak
    _store(out + head * T * d, a / l[:, None], i, T, d, TILE, D)
    at = i + tl.arange(0, TILE)
    tl.store(lse + head * T + at, m + tl.log(l), at < T)


@triton.jit
def _attention_backward(
    do,
    q,
    k,
    v,
    lse,
    rowsum,
    dq,
    dk,
    dv,
    scale,
    T,
    K,
    d,
    CAUSAL: tl.constexpr,
    TILE: tl.constexpr,
    D: tl.constexpr,
):
    j, head = tl.program_id(0) * TILE, tl.program_id(1).to(tl.int64)
    kj, vj = _load(k + head * K * d, j, K, d, TILE, D), _load(v + head * K * d, j, K, d, TILE, D)
    dkj, factor = wide(tl.zeros((TILE, D), kj.dtype)), tl.load(scale)
    dvj = dkj
    for i in range(j if CAUSAL else 0, T, TILE):
        at = i + tl.arange(0, TILE)
        qi, doi = (
            _load(q + head * T * d, i, T, d, TILE, D),
            _load(do + head * T * d, i, T, d, TILE, D),
        )
        row = tl.load(lse + head * T + at, at < T, 0.0)[:, None]
        p = tl.exp(_scores(qi, kj, i, j, K, factor, CAUSAL, TILE) - row)
        dp = wide(tl.dot(doi, tl.trans(vj), input_precision="ieee"))
        ds = p * (dp - tl.load(rowsum + head * T + at, at < T, 0.0)[:, None]) * factor
        dvj += tl.dot(tl.trans(p.to(doi.dtype)), doi, input_precision="ieee")
        dkj += tl.dot(tl.trans(ds.to(qi.dtype)), qi, input_precision="ieee")
        column = tl.arange(0, D)[None, :]
        tl.atomic_add(
            dq + head * T * d + at[:, None] * d + column,
            tl.dot(ds.to(kj.dtype), kj, input_precision="ieee"),
            (at[:, None] < T) & (column < d),
        )
    _store(dk + head * K * d, dkj, j, K, d, TILE, D)
    _store(dv + head * K * d, dvj, j, K, d, TILE, D)


def _sizes(q: Tensor, tile: int) -> dict[str, int]:
    """What the kernels are compiled for; Triton's products have sides of at least 16, and powers of two.

    A tile is halved until it has at most LARGEST bytes: backward has some six of them on the chip at once. With two
    stages of loads under way they fit in 99 KiB, the least that GPUs of compute capability 8 and 9 have for a program.
    """
    if tile < 16 or tile & (tile - 1):
        raise ValueError(f"on a GPU a tile is a power of two of at least 16, not {tile}")
    D = max(16, triton.next_power_of_2(q.shape[2]))
    while tile > 16 and tile * D * q.element_size() > LARGEST:
        tile //= 2
    return dict(TILE=tile, D=D, num_stages=2)


def attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, tile: int
) -> tuple[Tensor, Tensor]:
    q, k, v = (x.contiguous() for x in (q, k, v))
    (N, T, d), sizes = q.shape, _sizes(q, tile)
    out, lse = (
        torch.empty_like(q),
        q.new_empty(N, T, dtype=torch.promote_types(q.dtype, torch.float32)),
    )
    grid = triton.cdiv(T, sizes["TILE"]), N
    _attention[grid](q, k, v, out, lse, number(scale, q), T, k.shape[1], d, CAUSAL=causal, **sizes)
    return out, lse


def attention_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
    tile: int,
) -> tuple[Tensor, Tensor, Tensor]:
    do, q, k, v = (x.contiguous() for x in (do, q, k, v))
    (N, T, d), K, sizes = q.shape, k.shape[1], _sizes(q, tile)
    rowsum = (do.to(lse.dtype) * out.to(lse.dtype)).sum(-1)
    dq = torch.zeros_like(q, dtype=lse.dtype)
    dk = torch.empty_like(k)
    dv = torch.empty_like(v)
    grid = triton.cdiv(K, sizes["TILE"]), N
    _attention_backward[grid](
        do,
        q,
        k,
        v,
        lse.contiguous(),
        rowsum,
        dq,
        dk,
        dv,
        number(scale, q),
        T,
        K,
        d,
        CAUSAL=causal,
        **sizes,
    )
    return dq.to(q.dtype), dk, dv
