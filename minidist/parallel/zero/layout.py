"""Who owns what in ZeRO: whole parameters, spread over the ranks by bytes, in one flat buffer ordered by owner.

An optimizer's step needs of a parameter its gradient and its states, and nothing of the others: so a parameter with
all that belongs to it can live on one rank. Whole parameters, as an optimizer may look at the norm or the rows of one.

    buffer   [ rank 0's: w1 b3 │ rank 1's: w2 b1 │ rank 2's: w3 b2 ]     p.data are views of it
    chunks     0                 1                 2                     uneven; all-gathered where they lie

Largest first, each to the rank with the least so far: the fullest rank has at most 4/3 of the best possible (Graham
1969, "Bounds on Multiprocessing Timing Anomalies"). ZeRO splits the flat buffer evenly instead, through parameters:
Rajbhandari et al. 2020, section 5.1. Invariant: all ranks find the same owners.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from ...collectives import all_gather_, broadcast_
from ...comm.base import Comm


def best_fit(nbytes: Sequence[int], loads: Sequence[int]) -> list[int]:
    """The owner of each of these parameters.

    nbytes: their sizes.  loads: bytes that each rank owns already, zeros at first.  Of equally large parameters the
    first one goes first, of equally full ranks to the lowest.
    """
    ranks = [(load, rank) for rank, load in enumerate(loads)]
    heapq.heapify(ranks)
    owners = [0] * len(nbytes)
    for i in sorted(range(len(nbytes)), key=lambda i: -nbytes[i]):
        load, owners[i] = ranks[0]
        heapq.heapreplace(ranks, (load + nbytes[i], owners[i]))
    return owners


def strides(p: Tensor) -> tuple[int, ...]:
    """Of a dense tensor laid out as `p`: those which autograd gives its gradient."""
    return torch.empty_like(p, device="meta").stride()


class FlatParameters:
    """`params` (one dtype) as views of one buffer, ordered by owner, and within it by size; rank 0's values.

    params: ordered.  buffer: flat.  chunks[r]: what rank r owns of it.  views[p]: p's place.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        owners: Sequence[int],
        comm: Comm,
        algorithm: str | None = None,
    ):
        order = sorted(range(len(params)), key=lambda i: (owners[i], -params[i].numel()))
        self.comm, self.algorithm = comm, algorithm
        self.params = [params[i] for i in order]
        sizes = [p.numel() for p in self.params]
        firsts = [0, *accumulate(sizes)]
        self.buffer = self.params[0].new_empty(firsts[-1])
        lengths = [0] * comm.size
        for i, size in zip(order, sizes, strict=True):
            lengths[owners[i]] += size
        self.chunks = list(self.buffer.split(lengths))
        self.views = {
            p: self.place(p, self.buffer, first)
            for p, first in zip(self.params, firsts, strict=False)
        }
        for p, view in self.views.items():
            view.copy_(p.detach())
            p.data = view
        broadcast_(comm, self.buffer)

    @staticmethod
    def place(p: Tensor, flat: Tensor, first: int) -> Tensor:
        """A view of `flat` from element `first` on, laid out as `p`."""
        return flat.as_strided(p.shape, strides(p), flat.storage_offset() + first)

    def like(self, dtype: torch.dtype) -> tuple[Tensor, dict[Tensor, Tensor]]:
        """A copy of this rank's chunk in another dtype, flat, and as a tensor for each parameter in it."""
        mine = self.chunks[self.comm.rank]
        flat, start = mine.to(dtype, copy=True), mine.storage_offset()
        inside = range(start, start + mine.numel())
        return flat, {
            p: self.place(p, flat, view.storage_offset() - start)
            for p, view in self.views.items()
            if p.numel() and view.storage_offset() in inside
        }

    def gather(self) -> None:
        """Every rank's chunk as its owner has it, on all ranks. (n−1)/n of the buffer in and out."""
        all_gather_(self.comm, self.chunks, algorithm=self.algorithm)

    def moved(self) -> list[Tensor]:
        """The parameters that are no longer views of the buffer: their data were replaced."""
        return [p for p, view in self.views.items() if p.data_ptr() != view.data_ptr()]
