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
    """From the parent, then to the children, the one with the most ranks below it first.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import tree
    >>> def program(comm):
    ...     flat = torch.full((2,), float(comm.rank))
    ...     tree.broadcast(comm, flat, root=0)
    ...     return flat[0].item()
    >>> trace = World(8, alpha=0.0, beta=0.125).run(program).trace  # 8 bytes: a second
    >>> for second in range(3):
    ...     print([f"{m.src} → {m.dst}" for m in trace if m.start == second])
    ['0 → 4']
    ['0 → 2', '4 → 6']
    ['0 → 1', '2 → 3', '4 → 5', '6 → 7']
    """
    v, children = _place(comm, root)
    if v:
        comm.recv(flat, (root + _parent(v)) % comm.size, label)
    for distance in reversed(children):
        comm.send(flat, (comm.rank + distance) % comm.size, label)


def reduce(comm: Comm, flat: Tensor, root: int, combine) -> None:
    """From the children, the nearest first, then to the parent. `flat` of the other ranks stays as it was.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import tree
    >>> def program(comm):
    ...     flat = torch.tensor([1, 10]) * comm.rank
    ...     tree.reduce(comm, flat, 0, torch.Tensor.add_)
    ...     return flat.tolist()
    >>> World(4).run(program)
    [[6, 60], [1, 10], [2, 20], [3, 30]]
    """
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
    """Reduce to rank 0, then broadcast from it: bit for bit the same everywhere.

    In place. combine: `combine(a, b)` makes `a` the combination and returns it, such as `Tensor.add_`.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import ring, tree
    >>> def program(comm, all_reduce):
    ...     flat = torch.ones(8) * comm.rank
    ...     all_reduce(comm, flat, torch.Tensor.add_)
    ...     return flat[0].item()
    >>> world = World(8, alpha=1.0, beta=0.0)  # latency is all that counts
    >>> for algorithm in (ring, tree):
    ...     print(world.run(program, algorithm.all_reduce)[0], world.time)
    28.0 14.0
    28.0 6.0
    """
    _reduce(comm, flat, 0, combine, True)
    broadcast(comm, flat, 0)


def barrier(comm: Comm, token: Tensor) -> None:
    """Up the tree, when all below have come, then down again.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import tree
    >>> results = World(8).run(lambda comm: tree.barrier(comm, torch.zeros(1, dtype=torch.uint8)))
    >>> results.trace.messages()
    14
    """
    v, children = _place(comm, 0)
    for distance in children:
        comm.recv(token.clone(), comm.rank + distance, "barrier")
    if v:
        comm.send(token, _parent(v), "barrier")
    broadcast(comm, token, 0, "barrier")


class Cost(Formulas):
    """A round takes as long as the slowest link between ranks 2^i apart.

    >>> from minidist.collectives import tree
    >>> from minidist.collectives.links import Net
    >>> from minidist.comm import Link
    >>> net = Net(4, lambda dst, src: Link(alpha=1.0, beta=0.5))
    >>> tree.Cost(net, nbytes=16).all_reduce()  # 4α + 4Nβ
    36.0
    """

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
        """⌈log₂n⌉(α + Nβ + Nγ) + ⌊log₂n⌋α + ⌈log₂n⌉Nβ: a reduce, then a broadcast"""
        return self.reduce() + self.broadcast()

    def barrier(self) -> float:
        """Seconds of an all-reduce of the token, whose byte is N."""
        return Cost(self.net, self.nbytes).all_reduce()
