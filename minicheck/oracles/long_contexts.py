"""Attention on one rank: what the answers must give, and what the usual mistakes would."""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.split import bounds, uneven

RIGHT_LATE = 0
NEXT_LATE = 1
EVEN_CHUNKS = 2


def zigzag_of(T: int, n: int, rank: int, slip: int = RIGHT_LATE) -> Tensor:
    """The positions of a rank's tokens; with a slip, as a mistake has them."""
    sizes = [T // (2 * n)] * (2 * n) if slip == EVEN_CHUNKS else uneven(T, 2 * n)
    chunks = bounds(sizes)
    late = n + rank if slip == NEXT_LATE else 2 * n - 1 - rank
    return torch.cat([torch.arange(*chunks[rank]), torch.arange(*chunks[late])])


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    """(queries, keys)."""
    return q @ k.T * q.shape[1] ** -0.5


def attended(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(result, log Σ exp of the scores)."""
    scores = scores_of(q, k)
    return scores.softmax(1) @ v, scores.logsumexp(1)


def summed_blocks(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """The results of blocks, each with a softmax of its own, added up."""
    return sum((attended(q, k, v)[0] for k, v in zip(keys, values)), torch.zeros_like(q))


def gradients(
    queries: list[Tensor], keys: list[Tensor], values: list[Tensor], grads: list[Tensor]
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """(dq, dk, dv) of each rank, of the losses of all of them."""
    leaves = [[x.clone().requires_grad_() for x in xs] for xs in (queries, keys, values)]
    k, v = torch.cat(leaves[1]), torch.cat(leaves[2])
    loss = sum(
        ((attended(q, k, v)[0] * g).sum() for q, g in zip(leaves[0], grads)), torch.zeros(())
    )
    found = torch.autograd.grad(loss, [x for xs in leaves for x in xs])
    n = len(queries)
    return list(zip(found[:n], found[n : 2 * n], found[2 * n :]))


def of_last_block(q: Tensor, blocks: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """(out, lse) by one who merges blocks, and keeps the lse of the last one instead of that of all."""
    out, lse = torch.zeros_like(q), q.new_full(q.shape[:1], -torch.inf)
    for k, v in blocks:
        new, more = attended(q, k, v)
        both = torch.logaddexp(lse, more)
        out = out * (lse - both).exp()[:, None] + new * (more - both).exp()[:, None]
        lse = more
    return out, lse


def part_of_block(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, out: Tensor, lse: Tensor, slip: str = ""
) -> tuple[Tensor, Tensor, Tensor]:
    """What one rank's queries add to the gradients of one block: (dq, dk, dv). slip: a mistake, "softmax" or "rows"."""
    scores = scores_of(q, k)
    P = scores.softmax(1) if slip == "softmax" else (scores - lse[:, None]).exp()
    rows = 0 if slip == "rows" else (grad * out).sum(1, keepdim=True)
    dS = P * (grad @ v.T - rows)
    scale = q.shape[1] ** -0.5
    return dS @ k * scale, dS.T @ q * scale, P.T @ grad
