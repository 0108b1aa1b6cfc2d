"""Attention on one rank: what the answers must give, and what the usual mistakes would."""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.split import bounds, uneven

RIGHT_LATE = 0
NEXT_LATE = 1
EVEN_CHUNKS = 2
CEILED_CHUNKS = 3


def zigzag_of(T: int, n: int, rank: int, slip: int = RIGHT_LATE) -> Tensor:
    """The positions of a rank's tokens; with a slip, as a mistake has them."""
    sizes = [T // (2 * n)] * (2 * n) if slip == EVEN_CHUNKS else uneven(T, 2 * n)
    chunks = bounds(sizes)
    if slip == CEILED_CHUNKS:
        size = -(-T // (2 * n))
        chunks = [(min(T, i * size), min(T, (i + 1) * size)) for i in range(2 * n)]
    late = n + rank if slip == NEXT_LATE else 2 * n - 1 - rank
    return torch.cat([torch.arange(*chunks[rank]), torch.arange(*chunks[late])])


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    """(…, queries, keys)."""
    return q @ k.mT * q.shape[-1] ** -0.5


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(result, log Σ exp of the scores); of no key at all, 0 and −inf. mask: which keys a query sees."""
    scores = scores_of(q, k)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    lse = scores.logsumexp(-1)
    return (scores - lse.clamp(min=-1e30)[..., None]).exp() @ v, lse


def of_every_head(k: Tensor, q: Tensor) -> Tensor:
    """Keys or values (g, t, D) of each of a heads: head h has those of head h // (a/g)."""
    return k.repeat_interleave(len(q) // len(k), 0)


def gradients(
    queries: list[Tensor], keys: list[Tensor], values: list[Tensor], grads: list[Tensor]
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """(dq, dk, dv) of each rank, of the losses of all of them: (a, t, D) and twice (g, t, D)."""
    leaves = [[x.clone().requires_grad_() for x in xs] for xs in (queries, keys, values)]
    k, v = (of_every_head(torch.cat(xs, 1), queries[0]) for xs in leaves[1:])
    loss = sum(
        ((attended(q, k, v)[0] * g).sum() for q, g in zip(leaves[0], grads)), torch.zeros(())
    )
    found = torch.autograd.grad(loss, [x for xs in leaves for x in xs])
    n = len(queries)
    return list(zip(found[:n], found[n : 2 * n], found[2 * n :]))


def of_last_block(
    q: Tensor, blocks: list[tuple[Tensor, Tensor]], masks: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """(out, lse) by one who merges blocks, and keeps the lse of the last one instead of that of all."""
    out, lse = torch.zeros_like(q), q.new_full(q.shape[:1], -torch.inf)
    for (k, v), mask in zip(blocks, masks):
        new, more = attended(q, k, v, mask)
        both = torch.logaddexp(lse, more)
        out = out * (lse - both).exp()[:, None] + new * (more - both).exp()[:, None]
        lse = more
    return out, lse


def part_of_block(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
    slip: str = "",
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """What one rank's queries add to the gradients of one block: (dq, dk, dv). slip: a mistake, by its name."""
    heads, groups = len(q), len(k)
    keys, values = of_every_head(k, q), of_every_head(v, q)
    if slip == "turns":
        keys, values = k.repeat(heads // groups, 1, 1), v.repeat(heads // groups, 1, 1)
    scores = scores_of(q, keys)
    P = scores.softmax(-1) if slip == "softmax" else (scores - lse[..., None]).exp()
    if mask is not None:
        P = P * mask
    rows = 0 if slip == "rows" else (grad * out).sum(-1, keepdim=True)
    dP = grad @ values.mT
    if slip == "rows of block":
        rows = (P * dP).sum(-1, keepdim=True)
    dS = P * (dP - rows)
    scale = q.shape[-1] ** -0.5
    both = [dS.mT @ q * scale, P.mT @ grad]
    if slip == "turns":
        dk, dv = (x.unflatten(0, (-1, groups)).sum(0) for x in both)
    elif slip == "first head":
        dk, dv = (x[:: heads // groups] for x in both)
    else:
        dk, dv = (x.unflatten(0, (groups, -1)).sum(1) for x in both)
    return dS @ keys * scale, dk, dv
