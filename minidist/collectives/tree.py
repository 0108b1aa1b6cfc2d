"""Binomial trees: in each round, every rank that has something passes it to one that has not.

Seen from the root, rank v's parent is v without its lowest bit; the ranks below it are the v+1 … v+2^i−1,
2^i being that bit. With 8 ranks:    0 ─▶ 4        0 ─▶ 2, 4 ─▶ 6        0 ─▶ 1, 2 ─▶ 3, 4 ─▶ 5, 6 ─▶ 7

The fewest rounds there can be, ⌈log₂n⌉; but everything passes every wire of a path: N bytes a round, where a
ring passes 2N/n. Broadcast takes ⌊log₂n⌋α + ⌈log₂n⌉Nβ, reduce ⌈log₂n⌉(α + Nβ + Nγ), all-reduce both. Good for
short messages. n−1 messages in all (all-reduce 2(n−1)). Thakur, Rabenseifner and Gropp 2005, section 4;
Chan et al. 2007 ("minimum spanning tree").
"""

from __future__ import annotations

from torch import Tensor

from ..comm.base import Comm, Recv, Send
from .buffers import scratch, together
from .links import Net, slowest


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


def _runs(first: int, count: int, n: int) -> list[tuple[int, int]]:
    """Ranks `first` … `first+count−1`, counted around, as runs of ranks that follow each other."""
    first %= n
    end = first + count
    return [(first, end)] if end <= n else [(first, n), (0, end - n)]


def _below(v: int, n: int) -> int:
    """How many ranks there are from v on downwards, itself included."""
    return min(v & -v if v else n, n - v)


def gather(comm: Comm, chunks: list[Tensor], root: int) -> None:
    """Each rank passes on all that came from below in one message (two where the ranks go around).

    ⌈log₂n⌉α + (n−1)/n·Nβ. The other ranks' `chunks` are room to work in.
    """
    (v, children), n = _place(comm, root), comm.size
    for distance in children:
        runs = _runs(comm.rank + distance, _below(v + distance, n), n)
        source = (comm.rank + distance) % n
        comm.batch([Recv(together(chunks, *run), source, "gather") for run in runs]).wait()
    if v:
        parent, runs = (root + _parent(v)) % n, _runs(comm.rank, _below(v, n), n)
        comm.batch([Send(together(chunks, *run), parent, "gather") for run in runs]).wait()


def scatter(comm: Comm, chunks: list[Tensor], root: int) -> None:
    """Each rank receives what is for it and all below it in one message (two where the ranks go around).

    ⌊log₂n⌋α + (n−1)/n·Nβ. On the other ranks, `chunks` say how long they are; this rank's is put into its place.
    """
    (v, children), n = _place(comm, root), comm.size
    if v:
        receives = []
        for first, end in _runs(comm.rank, _below(v, n), n):
            lengths = [chunk.numel() for chunk in chunks[first:end]]
            room = scratch(chunks[comm.rank], sum(lengths))
            receives.append(Recv(room, (root + _parent(v)) % n, "scatter"))
            chunks[first:end] = room.split(lengths)
        comm.batch(receives).wait()
    for distance in reversed(children):
        to, runs = (
            (comm.rank + distance) % n,
            _runs(comm.rank + distance, _below(v + distance, n), n),
        )
        comm.batch([Send(together(chunks, *run), to, "scatter") for run in runs]).wait()


def barrier(comm: Comm, token: Tensor) -> None:
    """Up the tree, when all below have come, then down again."""
    v, children = _place(comm, 0)
    for distance in children:
        comm.recv(token.clone(), comm.rank + distance, "barrier")
    if v:
        comm.send(token, _parent(v), "barrier")
    broadcast(comm, token, 0, "barrier")


class Cost:
    """Seconds of each verb; rank 0 is the root. A round takes as long as the slowest link between ranks 2^i apart."""

    @staticmethod
    def rounds(net: Net) -> list:
        """For each distance 1, 2, 4, … the links that are used."""
        n = net.n
        pairs = [
            lambda d=1 << i: [(v + d, v) for v in range(0, n - d, 2 * d)]
            for i in range((n - 1).bit_length())
        ]
        return [net.among(("tree", i), round_) for i, round_ in enumerate(pairs)]

    @staticmethod
    def latency(net: Net) -> float:
        """The largest sum of α on a path down: ⌊log₂n⌋ where all are alike. A rank's bits are its path."""
        alphas, last = [slowest(links, 0) for links in Cost.rounds(net)], net.n - 1
        paths = [last] + [(last >> i << i) - 1 for i in range(len(alphas)) if last >> i & 1]
        return max(sum(alpha for i, alpha in enumerate(alphas) if path >> i & 1) for path in paths)

    @staticmethod
    def broadcast(net: Net, nbytes: float, gamma: float = 0.0) -> float:
        """⌊log₂n⌋α + ⌈log₂n⌉Nβ: the root's next message leaves before the last one has come."""
        return Cost.latency(net) + sum(
            slowest(links, nbytes) - slowest(links, 0) for links in Cost.rounds(net)
        )

    @staticmethod
    def reduce(net: Net, nbytes: float, gamma: float = 0.0) -> float:
        """⌈log₂n⌉(α + Nβ + Nγ)"""
        return sum(slowest(links, nbytes) + nbytes * gamma for links in Cost.rounds(net))

    @staticmethod
    def all_reduce(net: Net, nbytes: float, gamma: float = 0.0) -> float:
        return Cost.reduce(net, nbytes, gamma) + Cost.broadcast(net, nbytes)

    @staticmethod
    def _shares(net: Net, nbytes: float) -> list[tuple[list, float]]:
        """For each round its links, and the bytes that the root sends or receives in it."""
        return [
            (links, min(1 << i, net.n - (1 << i)) * nbytes / net.n)
            for i, links in enumerate(Cost.rounds(net))
        ]

    @staticmethod
    def gather(net: Net, nbytes: float, gamma: float = 0.0) -> float:
        """⌈log₂n⌉α + (n−1)/n·Nβ"""
        return sum(slowest(links, share) for links, share in Cost._shares(net, nbytes))

    @staticmethod
    def scatter(net: Net, nbytes: float, gamma: float = 0.0) -> float:
        """⌊log₂n⌋α + (n−1)/n·Nβ"""
        wires = sum(
            slowest(links, share) - slowest(links, 0) for links, share in Cost._shares(net, nbytes)
        )
        return Cost.latency(net) + wires

    @staticmethod
    def barrier(net: Net, nbytes: float, gamma: float = 0.0) -> float:
        return Cost.all_reduce(net, nbytes)
