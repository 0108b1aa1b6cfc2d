"""Attention in tiles, as one operator: exact, with memory that grows by T, not by T².

Problem: softmax(qkᵀ)v written out makes and keeps scores (N, T, T), N = batch · heads: 4T²N bytes in fp32, twice, and
every step reads or writes them. Idea: `tiles`, forward and backward; on a GPU a tile stays on the chip.

    of N heads, T × T, dimension d      written out         here
    kept for backward                   (T + 3d)·T·N        (4d + 1)·T·N: q, k, v, o and a number a row
    FLOPs, forward and backward         4 and 8 TTdN        4 and 10 TTdN: backward forms the scores again;
                                                            causal: only the tiles that are worked on
    bytes, forward                      ~ 6 TTN elements    q, o once; k and v again for every tile of queries
    bytes, backward                     ~ 9 TTN             k, v, dk, dv once; q, do, lse, D, and dq read and
                                                            written again for every tile of keys; dq, D in fp32

The Θ(T²d²/M) of Dao et al. 2022, theorem 2, where a tile fills the chip's memory M. Source: the same, algorithms 1, 4.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...comm.base import describe
from . import tiles
from .operator import alike, differentiable, exact, operator

CPU_TILE, TILE = 128, 64
"""A tile of keys and one of values fit in a core's cache; on a GPU in what a multiprocessor shares."""


def attention_plain(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None
) -> Tensor:
    """Written out: scores (…, T, K) in memory, each step a launch."""
    scores = exact(q) @ exact(k).mT * _scale(q, scale)
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    return (scores.softmax(-1) @ exact(v)).to(q.dtype)


def _scale(q: Tensor, scale: float | None) -> float:
    return q.shape[-1] ** -0.5 if scale is None else scale


def _pairs(q: Tensor, k: Tensor, causal: bool, tile: int) -> list[tuple[int, int]]:
    """(queries, keys) of every tile of scores that is worked on."""
    queries, keys = (
        [min(tile, T - first) for first in range(0, T, tile)] for T in (q.shape[1], k.shape[1])
    )
    return [
        (rows, columns)
        for i, rows in enumerate(queries)
        for j, columns in enumerate(keys)
        if not causal or j <= i
    ]


def _product(q: Tensor, pairs: list[tuple[int, int]]) -> int:
    """FLOPs of one product over all tiles, such as the scores'."""
    return 2 * q.shape[0] * q.shape[2] * sum(rows * columns for rows, columns in pairs)


def _flops(q, k, v, causal, scale, tile, out_val) -> int:
    return 2 * _product(q, _pairs(q, k, causal, tile))


def _backward_flops(do, q, k, v, out, lse, causal, scale, tile, out_val) -> int:
    return 5 * _product(q, _pairs(q, k, causal, tile))


def _moved(q, k, v, causal, scale, tile, out_val) -> int:
    keys = sum(columns for _, columns in _pairs(q, k, causal, tile))
    return q.nbytes + 2 * keys * k[:, :1].nbytes + sum(x.nbytes for x in out_val)


def _backward_moved(do, q, k, v, out, lse, causal, scale, tile, out_val) -> int:
    first = do.nbytes + out.nbytes + lse.nbytes  # D = Σ do∘o
    row, number = q.shape[0] * q.shape[2], lse.element_size()
    # q, do; lse, D; dq twice
    a_query = 2 * row * q.element_size() + 2 * q.shape[0] * number + 2 * row * number
    queries = sum(rows for rows, _ in _pairs(q, k, causal, tile))
    return first + queries * a_query + sum(x.nbytes for x in (k, v, *out_val[1:]))


def _fake(q, k, v, causal, scale, tile):
    return q.new_empty(q.shape), q.new_empty(
        q.shape[:2], dtype=torch.promote_types(q.dtype, torch.float32)
    )


def _fake_backward(do, q, k, v, out, lse, causal, scale, tile):
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


@operator("attention", fake=_fake, flops=_flops, moved=_moved)
def _attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, tile: int
) -> tuple[Tensor, Tensor]:
    return tiles.forward(q, k, v, causal, scale, tile)


@operator("attention_backward", fake=_fake_backward, flops=_backward_flops, moved=_backward_moved)
def _attention_backward(
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
    return tiles.backward(do, q, k, v, out, lse, causal, scale, tile)


def _keep(ctx, inputs, output) -> None:
    q, k, v, *ctx.how = inputs
    ctx.save_for_backward(q, k, v, *output)


differentiable(
    _attention,
    lambda ctx, do: (*_attention_backward(do, *ctx.saved_tensors, *ctx.how), None, None, None),
    _keep,
)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    scale: float | None = None,
    tile: int | None = None,
) -> Tensor:
    """softmax(q·kᵀ·scale)·v: (…, T, d), (…, K, d), (…, K, d) → (…, T, d).

    causal: a query sees the keys up to its own place; T = K.  scale: 1/√d unless given.
    tile: queries, and keys, that are worked on together: 128 on a CPU, else 64; on a GPU a power of two, 16 or more.
    Sums in float32 at least. Raises ValueError for other shapes, dtypes or devices.
    """
    alike("k", k, v=v)
    if (
        q.dim() < 2
        or q.shape[:-2] != k.shape[:-2]
        or q.shape[-1] != k.shape[-1]
        or q.dtype != k.dtype
    ):
        raise ValueError(
            f"q is (…, T, d), k and v are (…, K, d), alike in … and d: they are {describe(q)} and "
            f"{describe(k)}"
        )
    if causal and q.shape[-2] != k.shape[-2]:
        raise ValueError(
            f"causal attention has as many queries as keys, not {q.shape[-2]} and {k.shape[-2]}"
        )
    tile = tile if tile is not None else CPU_TILE if q.device.type == "cpu" else TILE
    if tile < 1:
        raise ValueError(f"a tile has at least 1 query, not {tile}")
    flat = [x.reshape(-1, *x.shape[-2:]) for x in (q, k, v)]
    return _attention(*flat, causal, _scale(q, scale), tile)[0].view(q.shape)
