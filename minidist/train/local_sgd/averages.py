"""The average of all ranks' parameters: what Local SGD sends instead of gradients.

    rank 0   x ── step ── step ── step ── x0 ─┐                ┌─ x ── step …
    rank 1   x ── step ── step ── step ── x1 ─┴─ (x0 + x1)/2 ──┴─ x ── step …

Each rank scales what it has by its share, 1/n or its part of all samples, and an all-reduce adds: so no sum of n
weights can overflow, and the result is the same on every rank bit for bit. Tensors of one dtype travel in flat buckets,
one all-reduce each; nothing stays allocated between two averages but what is averaged.

Cost of N bytes in b buckets, by rings: 2(n−1)·bα + 2(n−1)/n·Nβ. Source: McMahan et al. 2017, "Communication-Efficient
Learning of Deep Networks from Decentralized Data", algorithm 1 (the weights); Stich 2019, section 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ...collectives import all_reduce_
from ...comm.base import Comm
from ...parallel.buckets import assign
from ...parallel.reducer import check_weight


def shares(comm: Comm, weight: float | None) -> Tensor | float:
    """This rank's share in an average: 1/n, or weight/(sum of the weights), a message of 8 bytes.

    1/n too where the weights of all ranks are 0. ValueError for a negative weight.
    """
    if weight is None:
        return 1 / comm.size
    check_weight(comm, weight)
    mine = torch.tensor(float(weight), dtype=torch.float64, device=comm.device)
    total = all_reduce_(comm, mine.clone())
    return torch.where(total > 0, mine / total, 1 / comm.size)


@torch.no_grad()
def average_parameters(comm: Comm, tensors: Iterable[Tensor], weight: float | None = None) -> None:
    """The naive average, in place: one all-reduce for each tensor. weight: see `shares`."""
    share = shares(comm, weight)
    for x in tensors:
        all_reduce_(comm, x.mul_(share))


@torch.no_grad()
def average_(
    comm: Comm,
    tensors: Sequence[Tensor],
    weight: float | None = None,
    bucket_bytes: int = 25 << 20,
    algorithm: str | None = None,
) -> None:
    """The same in buckets of at most `bucket_bytes`. ValueError for a size below 1."""
    sizes, kinds = [x.numel() * x.element_size() for x in tensors], [x.dtype for x in tensors]
    buckets, share = assign(sizes, kinds, bucket_bytes, bucket_bytes), shares(comm, weight)
    for bucket in ([tensors[i] for i in positions] for positions in buckets):
        for x in bucket:
            x.mul_(share)
        all_reduce_(comm, bucket, algorithm=algorithm)
