"""Attention tile by tile: what is never formed is the (T, T) matrix of scores.

    for each tile i of queries, m = −∞, l = 0, a = 0            forward: s is one tile of scores, (tile, tile)
        for each tile j of keys:   s = qᵢkⱼᵀ   m' = max(m, max s)   p = exp(s − m')
            l = l·exp(m − m') + Σ p             a = a·exp(m − m') + p·vⱼ
        oᵢ = a/l               lseᵢ = m + log l                  all that backward needs of the scores

    for each tile j of keys, for each tile i of queries:        backward, D = Σ do∘o a row, p = exp(s − lse)
        dvⱼ += pᵀdoᵢ    ds = p∘(doᵢvⱼᵀ − D)    dqᵢ += ds·kⱼ    dkⱼ += dsᵀqᵢ

Causal: keys later than the query are left out, and tiles of them alone are skipped, about half. q is scaled before.
Temporary memory: some tiles, O(1) in T; kept and returned, O(T). Invariant: exact, it is no approximation.
Sources: Dao et al. 2022, "FlashAttention", algorithms 1 and 4 (forward here has the loops in the order of Dao 2023,
algorithm 1: a tile of queries is finished before the next); Milakov and Gimelshein 2018 for m and l.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .compiled import Kernel, filled
from .operator import exact


def _masked(s: Tensor, causal: bool) -> Tensor:
    """Scores of a tile on the diagonal; another one is whole."""
    if not causal:
        return s
    future = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1)
    return s.masked_fill(future, -math.inf)


def forward_tile(q: Tensor, k: Tensor, v: Tensor, m: Tensor, l: Tensor, a: Tensor, causal: bool):
    """m, l, a with one tile of keys taken in: q and a (N, queries, d), k and v (N, keys, d), m and l (N, queries)."""
    s = _masked(q @ k.mT, causal)
    peak = torch.maximum(m, s.amax(-1))
    p, less = (s - peak[..., None]).exp(), (m - peak).exp()
    return peak, l * less + p.sum(-1), a * less[..., None] + p @ v


def backward_tile(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, lse: Tensor, D: Tensor, causal: bool
):
    """What one tile of scores adds to dq (of the scaled q), dk and dv."""
    p = (_masked(q @ k.mT, causal) - lse[..., None]).exp()
    ds = p * (do @ v.mT - D[..., None])
    return ds @ k, ds.mT @ q, p.mT @ do


def _examples(dtype: torch.dtype) -> list[tuple]:
    """q, k, v, q's like, two numbers a query, causal. On the diagonal a tile is square; elsewhere it need not be."""
    key = (8, 128, 64)
    return [
        (*filled((8, T, 64), key, key, (8, T, 64), (8, T), (8, T), dtype=dtype), T == 128)
        for T in (120, 128)
    ]


FORWARD = Kernel(
    forward_tile,
    lambda dtype: [(q, k, v, m, l, a, c) for q, k, v, a, m, l, c in _examples(dtype)],
    True,
)
BACKWARD = Kernel(backward_tile, _examples, True)


def seen(i: int, keys: int, causal: bool) -> int:
    """How many of the `keys` tiles the i-th tile of queries looks at."""
    return min(i + 1, keys) if causal else keys


def _cut(x: Tensor, tile: int, scale: float = 1.0) -> list[Tensor]:
    """Tiles of x (N, T, …), each in memory of its own, in float32 at least."""
    return [
        exact(part).mul(scale) if scale != 1 else exact(part).contiguous()
        for part in x.split(tile, 1)
    ]


def forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, tile: int
) -> tuple[Tensor, Tensor]:
    """o (N, T, d) and lse (N, T) of q (N, T, d), k and v (N, K, d)."""
    out, lse = (
        torch.empty_like(q),
        q.new_empty(q.shape[:2], dtype=torch.promote_types(q.dtype, torch.float32)),
    )
    qs = _cut(q, tile, scale)
    ks = _cut(k, tile)
    vs = _cut(v, tile)
    for i, qi in enumerate(qs):
        l, a = lse.new_zeros(qi.shape[:2]), torch.zeros_like(qi)
        m = l - math.inf
        for j in range(seen(i, len(ks), causal)):
            m, l, a = FORWARD(qi, ks[j], vs[j], m, l, a, causal and j == i)
        out.narrow(1, i * tile, qi.shape[1]).copy_(a / l[..., None])
        lse.narrow(1, i * tile, qi.shape[1]).copy_(m + l.log())
    return out, lse


def backward(
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
    """dq, dk and dv, summed over the tiles in float32 at least."""
    D = (exact(do) * exact(out)).sum(-1)
    queries = list(
        zip(_cut(q, tile, scale), _cut(do, tile), _cut(lse, tile), _cut(D, tile), strict=True)
    )
    dq = [torch.zeros_like(qi) for qi, *_ in queries]
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    for j, (kj, vj) in enumerate(zip(_cut(k, tile), _cut(v, tile), strict=True)):
        dkj, dvj = torch.zeros_like(kj), torch.zeros_like(vj)
        for i in range(j if causal else 0, len(queries)):
            qi, *rest = queries[i]
            for total, part in zip(
                (dq[i], dkj, dvj), BACKWARD(qi, kj, vj, *rest, causal and j == i), strict=True
            ):
                total += part
        dk.narrow(1, j * tile, kj.shape[1]).copy_(dkj)
        dv.narrow(1, j * tile, kj.shape[1]).copy_(dvj)
    return torch.cat(dq, 1).mul_(scale).to(q.dtype), dk, dv
