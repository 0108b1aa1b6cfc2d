"""Gradients on their way to their owners: a reduce-scatter that reads them where autograd has put them.

    owner 0's   [ w1 ··slice··│··slice·· ][ b3 b5 flags ]      a round: the k-th piece of every owner,
    owner 1's   [ w2 ··slice··│··slice·· ][ b1 b4 flags ]      a reduce-scatter of n pieces
    round         0               1           2

A large gradient goes in slices, nothing is packed; the owner's becomes the sum in place. Small ones go packed, with a
flag for each gradient that counts the ranks which have one. After it only the owner's remain; the others are freed.
With N bytes of gradients, P of them, K rounds: (n−1)·Kα + (n−1)/n·(N + P flags)β, and n slices of memory.
Source: Rajbhandari et al. 2020, "ZeRO", section 5.2: "reduce the gradients only on the rank that updates them".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from ...collectives import reduce_scatter_
from ...comm.base import Comm
from .averages import Averages

SLICE = 4 << 20  # bytes sent at once to an owner: worth the latency, and little memory
SMALL = 1 << 18  # bytes of a gradient below which it is packed with others


class _Piece(NamedTuple):
    """What is sent at once to one owner: a slice of a gradient, or several small ones and their flags."""

    grads: list[Tensor]
    flags: Tensor | None = None

    def packed(self, factor: Tensor | float) -> Tensor:
        """As one flat tensor, the gradients times `factor`."""
        whole = torch.cat(self.parts) if len(self.parts) > 1 else self.grads[0]
        whole[: sum(g.numel() for g in self.grads)].mul_(factor)
        return whole

    def unpack(self, chunk: Tensor) -> None:
        """Copy what was packed back to where it came from."""
        if len(self.parts) > 1:
            for part, got in zip(
                self.parts, chunk.split([part.numel() for part in self.parts]), strict=True
            ):
                part.copy_(got)

    @property
    def parts(self) -> list[Tensor]:
        return self.grads if self.flags is None else [*self.grads, self.flags]


class OwnedBucket:
    """The gradients of `params` (one dtype), of which `owners` says whose they are.

    In a backward, as `Reducer` has it: `put` each gradient, `seal` once all are there, `reduce`, `hand_out`.
    """

    def __init__(
        self, params: Sequence[Tensor], owners: Sequence[int], comm: Comm, averages: Averages
    ):
        self.params, self.owners = list(params), list(owners)
        self.missing: set[Tensor] = set()  # of this backward
        self._rank = comm.rank
        self._averages = averages
        self._factor = 1.0
        self._of = [[i for i, owner in enumerate(owners) if owner == r] for r in range(comm.size)]
        self._grads: dict[Tensor, Tensor] = {}
        self._has: set[Tensor] = set()  # those with a gradient on this rank
        self._flags: list[Tensor] = []  # for each owner, one for each gradient

    @torch.no_grad()
    def put(self, p: Tensor, factor: float) -> None:
        """Take the gradient of `p`; where it has none, or the factor is 0, zeros."""
        self._averages.set_aside(p)
        grad, p.grad = p.grad, None
        if grad is not None:
            self._has.add(p)
        # flat, it would be in another order
        if grad is None or factor == 0 or grad.stride() != p.stride():
            like = torch.empty_strided(p.shape, p.stride(), dtype=p.dtype, device=p.device)
            grad = like.zero_() if grad is None or factor == 0 else like.copy_(grad.detach())
        self._grads[p], self._factor = grad.detach(), factor
        self.missing.discard(p)

    def seal(self) -> None:
        """All gradients are there: say which of them this rank really has."""
        like = self.params[0]
        self._flags = [
            like.new_tensor([p in self._has for p in self._params(r)]) for r in range(len(self._of))
        ]

    def _params(self, owner: int) -> list[Tensor]:
        return [self.params[i] for i in self._of[owner]]

    @torch.no_grad()
    def reduce(self, comm: Comm, part: Tensor | float | None, algorithm: str | None) -> None:
        """Sum each gradient at its owner, times this rank's share; drop the others."""
        factor = self._factor if part is None else part
        pieces = [list(self._pieces(r)) for r in range(comm.size)]
        for row in zip_longest(*pieces, fillvalue=_Piece([self.params[0].new_empty(0)])):
            chunks = [piece.packed(factor) for piece in row]
            reduce_scatter_(comm, chunks, algorithm=algorithm)
            row[comm.rank].unpack(chunks[comm.rank])
        self._grads = {p: self._grads[p] for p in self._params(comm.rank)}

    def _pieces(self, owner: int) -> Iterator[_Piece]:
        """What goes to `owner`, in an order that is the same on every rank."""
        params = self._params(owner)
        if not params:
            return
        each, small = self._slice(), []
        for p in params:
            flat = self._grads[p].as_strided((p.numel(),), (1,))
            if p.nbytes >= SMALL:
                yield from (_Piece([part]) for part in flat.split(each))
                continue
            if small and sum(g.numel() for g in small) + p.numel() > each:
                yield _Piece(small)
                small = []
            small.append(flat)
        yield _Piece(small or [flat[:0]], self._flags[owner])

    def _slice(self) -> int:
        """Elements of a slice: a 64th of all where that is more, so that few pieces carry a large model."""
        nbytes = sum(p.nbytes for p in self.params)
        return max(SLICE, nbytes // 64) // self.params[0].element_size()

    def hand_out(self) -> None:
        """Give this rank its averages. A gradient that no rank has stays None; on meta tensors there are no flags to
        read, and it does where this rank has none."""
        mine = self._params(self._rank)
        flags = [p in self._has for p in mine]
        if not all(flags) and not self.params[0].is_meta:
            flags = self._flags[self._rank].tolist()
        for p, there in zip(mine, flags, strict=True):
            self._averages.give(p, self._grads[p] if there else None)
        self._grads = {}
        self._has = set()
        self._flags = []
