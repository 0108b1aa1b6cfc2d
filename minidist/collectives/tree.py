"""Binomial trees: in each round, every rank that has something passes it to one that has not.

Seen from the root, rank v's parent is v without its lowest bit; the ranks below it are the v+1 … v+2^i−1,
2^i being that bit. With 8 ranks:    0 ─▶ 4        0 ─▶ 2, 4 ─▶ 6        0 ─▶ 1, 2 ─▶ 3, 4 ─▶ 5, 6 ─▶ 7

The fewest rounds there can be, ⌈log₂n⌉; but everything passes every wire of a path: N bytes a round, where a
ring passes 2N/n. Broadcast takes ⌊log₂n⌋α + ⌈log₂n⌉Nβ, reduce ⌈log₂n⌉(α + Nβ + Nγ), all-reduce both. Good for
short messages. n−1 messages in all (all-reduce 2(n−1)). Thakur, Rabenseifner and Gropp 2005, section 4;
Chan et al. 2007 ("minimum spanning tree").
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from ..comm.base import Comm, Link
from .buffers import scratch
from .links import Formulas, slowest


def _place(comm: Comm, root: int) -> tuple[int, list[int]]:
    """This rank's number seen from the root, and the distances of its children there, the nearest first."""
    v = (comm.rank - root) % comm.size
    levels = (v & -v).bit_length() - 1 if v else (comm.size - 1).bit_length()
    return v, [1 << i for i in range(levels) if v + (1 << i) < comm.size]


def _parent(v: int) -> int:
    return v & (v - 1)


def broadcast(comm: Comm, flat: Tensor, root: int, label: str = "broadcast") -> None:
    """From the parent, then to the children, the one with the most ranks below it first."""
    v, children = _place(comm, root)
    if v:
        comm.recv(flat, (root + _parent(v)) % comm.size, label)
    for distance in reversed(children):
        comm.send(flat, (comm.rank + distance) % comm.size, label)


def reduce(comm: Comm, flat: Tensor, root: int, combine) -> None:
    """From the children, the nearest first, then to the parent. `flat` of the other ranks stays as it was."""
    _reduce(comm, flat, root, combine, comm.rank == root)


def _reduce(comm: Comm, flat: Tensor, root: int, combine, mine: bool) -> None:
    """`mine`: `flat` may be written."""
    v, children = _place(comm, root)
    partial, room = flat, None
    for distance in children:
        room = scratch(flat) if room is None else room
        comm.recv(room, (comm.rank + distance) % comm.size, "reduce")
        if mine:
            partial = combine(partial, room)
        else:  # what was received is ours to write
            partial = combine(room, partial)
            mine = True
            room = None
    if v:
        comm.send(partial, (root + _parent(v)) % comm.size, "reduce")


def all_reduce(comm: Comm, flat: Tensor, combine) -> None:
    """Reduce to rank 0, then broadcast from it: bit for bit the same everywhere."""
    _reduce(comm, flat, 0, combine, True)
    broadcast(comm, flat, 0)


def barrier(comm: Comm, token: Tensor) -> None:
    """Up the tree, when all below have come, then down again."""
    v, children = _place(comm, 0)
    for distance in children:
        comm.recv(token.clone(), comm.rank + distance, "barrier")
    if v:
        comm.send(token, _parent(v), "barrier")
    broadcast(comm, token, 0, "barrier")


class Cost(Formulas):
    """A round takes as long as the slowest link between ranks 2^i apart."""

    def rounds(self) -> list[list[Link]]:
        """For each distance 1, 2, 4, … the links that are used."""
        pairs = lambda d: [(v + d, v) for v in range(0, self.n - d, 2 * d)]
        distances = [1 << i for i in range((self.n - 1).bit_length())]
        return [self.net.among(("tree", d), partial(pairs, d)) for d in distances]

    def latency(self) -> float:
        """The largest sum of α on a path down: ⌊log₂n⌋ where all are alike. A rank's bits are its path."""
        alphas, last = [slowest(links, 0) for links in self.rounds()], self.n - 1
        paths = [last] + [(last >> i << i) - 1 for i in range(len(alphas)) if last >> i & 1]
        return max(sum(alpha for i, alpha in enumerate(alphas) if path >> i & 1) for path in paths)

    def broadcast(self) -> float:
        """⌊log₂n⌋α + ⌈log₂n⌉Nβ: the root's next message leaves before the last one has come."""
        wires = [slowest(links, self.nbytes) - slowest(links, 0) for links in self.rounds()]
        return self.latency() + sum(wires)

    def reduce(self) -> float:
        """⌈log₂n⌉(α + Nβ + Nγ)"""
        combined = self.nbytes * self.gamma
        return sum(slowest(links, self.nbytes) + combined for links in self.rounds())

    def all_reduce(self) -> float:
        return self.reduce() + self.broadcast()

    def barrier(self) -> float:
        return Cost(self.net, self.nbytes).all_reduce()
