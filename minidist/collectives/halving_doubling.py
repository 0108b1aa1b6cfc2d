"""Recursive halving and doubling: each step exchanges half of what the last one did, with a rank twice as near.

    4 ranks, chunks 0 1 2 3     step 1: 0 ⇄ 2, 1 ⇄ 3     step 2: 0 ⇄ 1, 2 ⇄ 3
    rank 0 keeps                0 1 and gives 2 3        0 and gives 1          chunk 0 is finished at rank 0

Reduce-scatter halves, all-gather doubles back: a ring's bytes in a tree's number of steps,
2⌊log₂n⌋α + (n−1)/n·N(2β + γ) for the all-reduce. Where n is no power of two, p the one below it and r = n−p, the
first 2r ranks are pairs of which one folds all it has into the other, which acts for both, and is told the result:
(α + Nβ + Nγ) + (α + Nβ) more. Rabenseifner 2004; Thakur, Rabenseifner and Gropp 2005, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import accumulate

from torch import Tensor

from ..comm.base import Comm, Link
from ..split import uneven
from .buffers import adjacent_view, copy_into, scratch
from .links import Formulas, Net, slowest


class _Group:
    """The p ranks that act, p a power of two. Actor v is rank 2v of the pairs, or one of those after them."""

    def __init__(self, comm: Comm):
        self.comm, self.p = comm, 1 << (comm.size.bit_length() - 1)
        self.pairs = comm.size - self.p
        self.paired = comm.rank < 2 * self.pairs
        self.acts = not self.paired or comm.rank % 2 == 0
        self.v = comm.rank // 2 if self.paired else comm.rank - self.pairs

    def rank(self, v: int) -> int:
        return 2 * v if v < self.pairs else v + self.pairs

    def fold(self, x: Tensor, combine, mine: bool) -> tuple[Tensor, bool]:
        """The partner's `x` folded into this actor's; whether the result may be written. The others only send."""
        if not self.paired:
            return x, mine
        if not self.acts:
            self.comm.send(x, self.comm.rank - 1, "fold")
            return x, mine
        received = self.comm.recv(scratch(x), self.comm.rank + 1, "fold")
        return (combine(x, received) if mine else combine(received, x)), True

    def halve(
        self, x: Tensor, ends: Sequence[int], combine, mine: bool, out: Tensor | None = None
    ) -> Tensor:
        """This actor's part of `x`, finished; part v is x[ends[v]:ends[v+1]]. In `out`, if that is given."""
        low, half = 0, self.p // 2
        while half:
            cut, upper = ends[low + half] - ends[low], self.v & half
            keep, give = (x[cut:], x[:cut]) if upper else (x[:cut], x[cut:])
            into = out if half == 1 else None
            received = scratch(keep) if into is None else into
            peer = self.rank(self.v ^ half)
            self.comm.sendrecv(give, peer, received, peer, label="reduce-scatter")
            x, mine = (
                combine(keep, received) if mine and into is None else combine(received, keep),
                True,
            )
            low, half = low + upper, half // 2
        return x

    def double(self, x: Tensor, ends: Sequence[int]) -> None:
        """All of `x` from the actors, each of which has its own part."""
        size = 1
        while size < self.p:
            low, peer = self.v & -size, self.rank(self.v ^ size)
            mine, theirs = (x[ends[i] : ends[i + size]] for i in (low, low ^ size))
            self.comm.sendrecv(mine, peer, theirs, peer, label="all-gather")
            size *= 2

    def unfold(self, x: Tensor) -> None:
        """All of `x` to the one that does not act."""
        if self.paired and self.acts:
            self.comm.send(x, self.comm.rank + 1, "unfold")
        elif self.paired:
            self.comm.recv(x, self.comm.rank - 1, "unfold")


@lru_cache(maxsize=64)
def _ends(total: int, p: int) -> tuple[int, ...]:
    """Where p equal parts begin and end; the same for all ranks of a World, which need not each count to p."""
    return 0, *accumulate(uneven(total, p))


def all_reduce(comm: Comm, flat: Tensor, combine) -> None:
    """`flat`, combined over all ranks, on every rank, bit for bit the same; half of it more in memory.

    In place. combine: `combine(a, b)` makes `a` the combination and returns it, such as `Tensor.add_`.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import halving_doubling
    >>> def program(comm):
    ...     flat = torch.ones(8) * comm.rank  # 32 bytes
    ...     halving_doubling.all_reduce(comm, flat, torch.Tensor.add_)
    ...     return flat[0].item()
    >>> results = World(8).run(program)  # a ring sends as many bytes, in 14 messages
    >>> results[0], results.trace.bytes_sent(rank=0), results.trace.messages(rank=0)
    (28.0, 56, 6)
    """
    group = _Group(comm)
    ends = _ends(flat.numel(), group.p)
    group.fold(flat, combine, True)
    if group.acts:
        group.halve(flat, ends, combine, True)
        group.double(flat, ends)
    group.unfold(flat)


def _owned(group: _Group, chunks: list[Tensor]) -> tuple[Tensor, list[int]]:
    """All chunks as one, and where in it the actors' parts begin and end."""
    starts = [0, *accumulate(chunk.numel() for chunk in chunks)]
    return adjacent_view(chunks, 0, len(chunks)), [
        starts[v + min(v, group.pairs)] for v in range(group.p + 1)
    ]


def reduce_scatter(comm: Comm, chunks: list[Tensor], out: Tensor, combine) -> None:
    """`out` becomes chunk `comm.rank`, combined over all ranks; the chunks are only read, unless `out` is one of them.

    ⌊log₂n⌋ messages and (n−1)/n·N bytes a rank where n is a power of two.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import halving_doubling
    >>> def program(comm):
    ...     flat = torch.tensor([1, 10, 100, 1000]) * (comm.rank + 1)
    ...     out = torch.zeros(1, dtype=torch.int64)
    ...     halving_doubling.reduce_scatter(comm, list(flat.split(1)), out, torch.Tensor.add_)
    ...     return out.item()
    >>> World(4).run(program)
    [10, 100, 1000, 10000]
    """
    group = _Group(comm)
    whole, ends = _owned(group, chunks)
    x, mine = group.fold(whole, combine, False)
    if not group.acts:
        comm.recv(out, comm.rank - 1, "unfold")
    elif group.paired:
        x = group.halve(x, ends, combine, mine)
        out.copy_(x[: out.numel()])
        comm.send(x[out.numel() :], comm.rank + 1, "unfold")
    elif group.p == 1:
        copy_into(chunks[0], out)
    elif group.p == 2 and out is chunks[comm.rank]:
        group.halve(x, ends, combine, True)  # what it keeps is `out`
    else:
        group.halve(x, ends, combine, mine, out)


def all_gather(comm: Comm, chunks: list[Tensor]) -> None:
    """Fill all `chunks` from the ranks that own them: ⌊log₂n⌋ messages a rank where n is a power of two.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import halving_doubling
    >>> def program(comm):
    ...     flat = torch.zeros(4)
    ...     flat[comm.rank] = comm.rank + 1
    ...     halving_doubling.all_gather(comm, list(flat.split(1)))
    ...     return flat.tolist()
    >>> results = World(4).run(program)
    >>> results[3], [message.nbytes for message in results.trace if message.src == 3]
    ([1.0, 2.0, 3.0, 4.0], [4, 8])
    """
    group = _Group(comm)
    whole, ends = _owned(group, chunks)
    if group.paired and group.acts:
        comm.recv(chunks[comm.rank + 1], comm.rank + 1, "fold")
    elif group.paired:
        comm.send(chunks[comm.rank], comm.rank - 1, "fold")
    if group.acts:
        group.double(whole, ends)
    group.unfold(whole)


class Cost(Formulas):
    """In each step all wait for the pair that exchanges most, over the slowest link.

    p: the power of two that act; r = n−p: the pairs. The formulas given are those for r = 0.

    >>> from minidist.collectives import halving_doubling
    >>> from minidist.collectives.links import Net
    >>> from minidist.comm import Link
    >>> net = Net(4, lambda dst, src: Link(alpha=1.0, beta=0.5))
    >>> halving_doubling.Cost(net, nbytes=16).all_reduce()  # 4α + 6/4·Nβ
    16.0
    """

    def __init__(self, net: Net, nbytes: float, gamma: float = 0.0):
        super().__init__(net, nbytes, gamma)
        self.p = 1 << (net.n.bit_length() - 1)
        self.r = net.n - self.p

    def _pairs(self, nbytes: float) -> float:
        """Seconds of a message within the pairs."""
        pairs = lambda: [(2 * v, 2 * v + 1) for v in range(self.r)]
        return slowest(self.net.among("pairs", pairs), nbytes) if self.r else 0.0

    def _steps(self) -> list[tuple[int, list[Link]]]:
        """Distances 1, 2, 4, … between actors, and the links between those that are so far apart."""
        ranks = [2 * v if v < self.r else v + self.r for v in range(self.p)]
        apart = lambda d: [(ranks[v | d], ranks[v]) for v in range(self.p) if not v & d]
        distances = [1 << i for i in range(self.p.bit_length() - 1)]
        return [(d, self.net.among(("doubling", d), partial(apart, d))) for d in distances]

    def all_reduce(self) -> float:
        """2 log₂n α + (n−1)/n·N(2β + γ)"""
        halves = sum(2 * slowest(links, self.nbytes / self.p * d) for d, links in self._steps())
        combined = (self.p - 1) / self.p + (1 if self.r else 0)
        return 2 * self._pairs(self.nbytes) + halves + combined * self.nbytes * self.gamma

    def reduce_scatter(self) -> float:
        """log₂n α + (n−1)/n·N(β + γ). The first 2^i actors own as many chunks, and one more for each pair."""
        shares = [(links, self.chunk * (d + min(d, self.r))) for d, links in self._steps()]
        fold = self._pairs(self.nbytes) + self._pairs(self.chunk)
        combined = self.nbytes * self.gamma if self.r else 0.0
        return fold + combined + sum(slowest(*share) + share[1] * self.gamma for share in shares)

    def all_gather(self) -> float:
        """log₂n α + (n−1)/n·Nβ. With pairs, who sends more than it receives is done before its partner."""
        p, r = self.p, self.r
        done = [self._pairs(self.chunk) if v < r else 0.0 for v in range(p)]
        for d, links in self._steps():
            alpha = slowest(links, 0)
            chunks = [d + min(max(r - low, 0), d) for low in range(0, p, d)]
            wire = [slowest(links, self.chunk * count) - alpha for count in chunks]
            done = [
                max(done[v], done[v ^ d]) + max(wire[v // d], alpha + wire[v // d ^ 1])
                for v in range(p)
            ]
        return max(end + (self._pairs(self.nbytes) if v < r else 0.0) for v, end in enumerate(done))
