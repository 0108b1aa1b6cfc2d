"""Flat buckets: P small gradients travel as b messages, each long enough to be worth its latency.

One all-reduce for each gradient costs P latencies, one for all of them cannot start before the last is
ready. Between the two: gradients of one dtype lie one after the other in a flat buffer, and `p.grad` is a
view of it. The buffer is what is sent, so nothing is packed and nothing is unpacked.

    ready first ─▶                                       last
    [ bias 3 | flag ] [ weight 3 | bias 2 | weight 2 | flags ] [ bias 1 | weight 1 | flags ]
    bucket 0, small   bucket 1                                 bucket 2

A flag for each gradient says on how many ranks there is one. Cost with rings: 2(n−1)·bα + 2(n−1)/n·Nβ.
Source: Li et al. 2020, "PyTorch Distributed", sections 3.2.2 (bucketing) and 4.2 (the order of buckets).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from ..arguments import whole
from ..collectives import all_reduce_
from ..comm.base import Comm


def assign(
    nbytes: Sequence[int], kinds: Sequence[Hashable], bucket_bytes: int, first_bucket_bytes: int
) -> list[list[int]]:
    """Which gradients share a bucket: lists of their positions, the bucket that is complete first in front.

    nbytes: bytes of each gradient, in the order in which they become ready.  kinds: the dtype of each.
    A bucket takes gradients of its dtype while they fit into `bucket_bytes`; the first one of a dtype is
    smaller, so that the wire has something to do early. A gradient that is larger has a bucket of its own.
    Raises ValueError for a size below 1.
    """
    whole(bucket_bytes, "a bucket has room for at least 1 byte", 1)
    whole(first_bucket_bytes, "the first bucket has room for at least 1 byte", 1)
    buckets: list[list[int]] = []
    # by dtype: the bucket, and the bytes that still fit
    filling: dict[Hashable, tuple[list[int], int]] = {}
    for i, (size, kind) in enumerate(zip(nbytes, kinds, strict=True)):
        bucket, room = filling.get(kind, ([], -1))
        if size > room:
            room = bucket_bytes if kind in filling else min(first_bucket_bytes, bucket_bytes)
            bucket = []
            buckets.append(bucket)
        bucket.append(i)
        filling[kind] = bucket, room - size
    return sorted(buckets, key=lambda bucket: bucket[-1])


class Bucket:
    """Room for the gradients of `params` (one dtype), and their flags, in one flat `buffer`.

    In a backward: `put` each gradient, `seal` once all are there, `reduce`, `hand_out`.
    """

    def __init__(self, params: Sequence[Tensor]):
        self.params = list(params)
        total = sum(p.numel() for p in params)
        self.buffer = self.params[0].new_empty(total + len(self.params))
        self.grads, self.flags = self.buffer[:total], self.buffer[total:]
        # of this backward; also those whose gradient may never come
        self.missing: set[Tensor] = set()
        self._absent: list[int] = []  # positions of the gradients that this rank does not have
        self._views: dict[Tensor, Tensor] = {}
        first = 0
        for p in self.params:  # each view with the strides that autograd would give the gradient
            strides = torch.empty_like(p, device="meta").stride()
            self._views[p] = self.buffer.as_strided(p.shape, strides, first)
            first += p.numel()

    @torch.no_grad()
    def put(self, p: Tensor, factor: float) -> None:
        """Make `p.grad` a view of the buffer, times `factor` (0: zeros, whatever it was). None counts as zeros.

        The pass that scales a new gradient also moves it, and one that is a view already stays where it is:
        so nothing is copied for the sake of the bucket.
        """
        view, grad = self._views[p], p.grad
        if grad is None or factor == 0:
            view.zero_()
        elif grad is not view:
            torch.mul(grad.detach(), factor, out=view)
        elif factor != 1:
            view.mul_(factor)
        if grad is not None:
            p.grad = view
        self.missing.discard(p)

    def seal(self) -> None:
        """All gradients are there: say which of them this rank really has."""
        self._absent = [i for i, p in enumerate(self.params) if p.grad is None]
        self.flags.fill_(1)
        if self._absent:
            self.flags[self._absent] = 0

    def reduce(self, comm: Comm, part: Tensor | float | None, algorithm: str | None) -> None:
        """Sum the gradients over the ranks, times this rank's share where `put` did not know it yet."""
        if part is not None:
            self.grads.mul_(part)
        all_reduce_(comm, self.buffer, algorithm=algorithm)

    def hand_out(self) -> None:
        """Give a parameter without a gradient here the average of those elsewhere; without any, it keeps None.

        On meta tensors there are no flags to read, and it keeps None.
        """
        if not self._absent or self.buffer.is_meta:
            return
        ranks = self.flags.tolist()
        for i in self._absent:
            if ranks[i]:
                self.params[i].grad = self._views[self.params[i]]
