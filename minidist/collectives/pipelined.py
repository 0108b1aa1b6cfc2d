"""Rings and chains in pieces: while one piece is combined or sent on, the next is on its way.

A ring's chunk goes in two pieces: the second travels while the first is combined, so each step takes the longer
of the two, and its latency passes while the other piece keeps the wire busy: 2(n−1)/n·Nβ + α where a piece is
longer on the wire than α, where the ring takes 2(n−1)α more. For the price of twice as many messages.

A chain, root → next → … → last, carries k pieces: the root sends piece i while piece i−1 is a link further.
(n−2)(α + Nβ/k) for the first piece to come, then the rest: about Nβ for a long message, whatever n. Reduce is the
same backwards. The best k: `links.pieces`; the times: `links.seconds`. N is the whole, n the ranks. Chan et al. 2007
(ring: "bucket" algorithms); Träff, Ripke, Siebert et al. 2008 (pipelined all-gather).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from ..comm.base import Comm, Recv, Send
from . import links
from .buffers import copy_into, scratch
from .links import Formulas, Step, worst

PIECES = 2  # of a ring's chunk: as many as are under way


def reduce_scatter(comm: Comm, chunks: list[Tensor], out: Tensor, combine) -> None:
    """`out` becomes chunk `comm.rank`, combined over all ranks; it may be `chunks[comm.rank]` itself.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import pipelined
    >>> def program(comm):
    ...     chunks = list((torch.tensor([1, 1, 10, 10, 100, 100]) * (comm.rank + 1)).split(2))
    ...     out = torch.zeros_like(chunks[comm.rank])
    ...     pipelined.reduce_scatter(comm, chunks, out, torch.Tensor.add_)
    ...     return out.tolist()
    >>> World(3).run(program)
    [[6, 6], [60, 60], [600, 600]]
    """
    if comm.size == 1:
        copy_into(chunks[0], out)
    links.run(comm, _scattering(comm, chunks, out, combine))


def all_gather(comm: Comm, chunks: list[Tensor]) -> None:
    """Fill all `chunks` from the ranks that own them. 2(n−1) messages, (n−1)/n·N bytes a rank.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import pipelined
    >>> def program(comm):
    ...     flat = torch.zeros(6)
    ...     chunks = list(flat.split(2))
    ...     chunks[comm.rank].fill_(comm.rank + 1)
    ...     pipelined.all_gather(comm, chunks)
    ...     return flat.tolist()
    >>> results = World(3).run(program)
    >>> results[0], results.trace.messages(rank=0), results.trace.bytes_sent(rank=0)
    ([1.0, 1.0, 2.0, 2.0, 3.0, 3.0], 4, 16)
    """
    links.run(comm, _gathering(comm, chunks, 0))


def all_reduce(comm: Comm, flat: Tensor, combine) -> None:
    """`flat`, combined over all ranks, on every rank, bit for bit the same: the second half starts in the first.

    In place. combine: `combine(a, b)` makes `a` the combination and returns it, such as `Tensor.add_`.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import pipelined, ring
    >>> def program(comm, all_reduce):
    ...     flat = torch.ones(64)  # 256 bytes: chunks of 64, pieces of 32
    ...     all_reduce(comm, flat, torch.Tensor.add_)
    ...     return flat[0].item()
    >>> world = World(4, alpha=32.0, beta=1.0)
    >>> for algorithm in (ring, pipelined):  # the ring: 2(n−1)(α + N/n·β)
    ...     print(world.run(program, algorithm.all_reduce)[0], world.time)
    4.0 576.0
    4.0 416.0
    """
    chunks, n = list(flat.tensor_split(comm.size)), comm.size

    def both() -> Iterator[Step]:
        yield from _scattering(comm, chunks, chunks[comm.rank], combine)
        yield from _gathering(comm, chunks, PIECES * (n - 1))

    links.run(comm, both())


def _scattering(comm: Comm, chunks: list[Tensor], out: Tensor, combine) -> Iterator[Step]:
    """As in ring.py: chunk i sets out from rank i+1, and each rank on its way adds its own."""
    n, r = comm.size, comm.rank
    longest = max(chunk.numel() for chunk in chunks)
    rooms = [scratch(out, longest) for _ in range(min(2, n - 1))]
    so_far = chunks[(r - 1) % n].tensor_split(PIECES)
    for step in range(n - 1):
        own = chunks[(r - 2 - step) % n]
        last = step == n - 2 and out is not own
        received = (out if last else rooms[step % 2][: own.numel()]).tensor_split(PIECES)
        for i, (mine, room) in enumerate(zip(own.tensor_split(PIECES), received, strict=True)):
            ops: list[Send | Recv] = [
                Send(so_far[i], (r + 1) % n, "reduce-scatter"),
                Recv(room, (r - 1) % n, "reduce-scatter"),
            ]
            pair = (mine, room) if out is own else (room, mine)
            yield step * PIECES + i, ops, partial(combine, *pair)
        so_far = received


def _gathering(comm: Comm, chunks: list[Tensor], start: int) -> Iterator[Step]:
    n, r = comm.size, comm.rank
    parts = [chunk.tensor_split(PIECES) for chunk in chunks]
    for step in range(n - 1):
        give, take = parts[(r - step) % n], parts[(r - step - 1) % n]
        for i in range(PIECES):
            ops: list[Send | Recv] = [
                Send(give[i], (r + 1) % n, "all-gather"),
                Recv(take[i], (r - 1) % n, "all-gather"),
            ]
            yield start + step * PIECES + i, ops, None


def _pieces(comm: Comm, flat: Tensor, hops: int) -> tuple[Tensor, ...]:
    """`flat` in as many pieces as are best for a chain of `hops`."""
    if comm.size == 1:
        return (flat,)
    return flat.tensor_split(links.pieces(hops, flat.nbytes, comm.link(comm.size - 1, 0)))


def broadcast(comm: Comm, flat: Tensor, root: int) -> None:
    """Down the chain root, root+1, …: k messages and N bytes a rank.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import pipelined, tree
    >>> def program(comm, broadcast):
    ...     flat = torch.full((10**6,), float(comm.rank))  # 4 MB, 80 µs on the wire
    ...     broadcast(comm, flat, root=3)
    ...     return flat[-1].item()
    >>> world = World(8)
    >>> for algorithm in (tree, pipelined):
    ...     print(world.run(program, algorithm.broadcast)[0], f"{1e6 * world.time:.0f} µs")
    3.0 255 µs
    3.0 145 µs
    """
    n, v = comm.size, (comm.rank - root) % comm.size
    parts = _pieces(comm, flat, n - 1)

    def chain() -> Iterator[Step]:
        for i in range(len(parts) + links.WINDOW):
            ops: list[Send | Recv] = []
            if v and i < len(parts):
                ops.append(Recv(parts[i], (comm.rank - 1) % n, "broadcast"))
            sent = i - links.WINDOW if v else i
            if v < n - 1 and 0 <= sent < len(parts):
                ops.append(Send(parts[sent], (comm.rank + 1) % n, "broadcast"))
            yield i, ops, None

    links.run(comm, chain())


def reduce(comm: Comm, flat: Tensor, root: int, combine) -> None:
    """Up the chain, combined on the way; `flat` of the other ranks stays as it was, four pieces more in memory.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import pipelined
    >>> def program(comm):
    ...     flat = torch.tensor([1, 10]) * comm.rank
    ...     pipelined.reduce(comm, flat, 0, torch.Tensor.add_)
    ...     return flat.tolist()
    >>> World(4).run(program)
    [[6, 60], [1, 10], [2, 20], [3, 30]]
    """
    n, v = comm.size, (comm.rank - root) % comm.size
    parts = _pieces(comm, flat, n)  # combining is a hop more
    rooms = [scratch(flat, parts[0].numel()) for _ in range(2 * links.WINDOW if v < n - 1 else 0)]

    def chain() -> Iterator[Step]:
        for i in range(len(parts) + links.WINDOW):
            ops: list[Send | Recv] = []
            then = None
            if v < n - 1 and i < len(parts):
                room, own = rooms[i % len(rooms)][: parts[i].numel()], parts[i]
                ops.append(Recv(room, (comm.rank + 1) % n, "reduce"))
                pair = (room, own) if v else (own, room)
                then = partial(combine, *pair)
            sent = i - links.WINDOW if v < n - 1 else i
            if v and 0 <= sent < len(parts):
                part = (
                    parts[sent] if v == n - 1 else rooms[sent % len(rooms)][: parts[sent].numel()]
                )
                ops.append(Send(part, (comm.rank - 1) % n, "reduce"))
            yield i, ops, then

    links.run(comm, chain())


class Cost(Formulas):
    """What S steps take is in links.py; a ring's half has S = 2(n−1).

    >>> from minidist.collectives import pipelined
    >>> from minidist.collectives.links import Net
    >>> from minidist.comm import Link
    >>> net = Net(4, lambda dst, src: Link(alpha=1.0, beta=0.5))
    >>> pipelined.Cost(net, nbytes=16).all_reduce()  # α + 6/4·Nβ
    13.0
    """

    def _seconds(self, steps: int, gamma: float) -> float:
        if self.n == 1:
            return 0.0
        piece = self.chunk / PIECES
        return links.seconds(steps, worst(self.net.ring, piece), piece, gamma)

    def all_gather(self) -> float:
        """(n−1)/n·Nβ + α where a piece is longer on the wire than α"""
        return self._seconds(PIECES * (self.n - 1), self.gamma)

    reduce_scatter = all_gather

    def all_reduce(self) -> float:
        """The second half begins when all but one of the first half's pieces are combined, and goes on when that is."""
        half, gamma = PIECES * (self.n - 1), self.gamma
        begun = self._seconds(half + 2, gamma) - self._seconds(2, gamma)
        combined = self._seconds(half, gamma)
        return max(begun + self._seconds(half, 0.0), combined + self._seconds(half - 1, 0.0))

    def _chain(self, hops: int, gamma: float) -> float:
        """(n−2)(α + Nβ/k + Nγ/k) for the first piece, then all k over the last link; backwards the same."""
        if self.n == 1:
            return 0.0
        k = links.pieces(hops, self.nbytes, self.net.far)
        piece, chain = self.nbytes / k, [self.net.link(r + 1, r) for r in range(self.n - 1)]
        if len(set(chain)) == 1:
            turn = chain[0].alpha + piece * (chain[0].beta + gamma)
            return (self.n - 2) * turn + links.seconds(k, chain[0], piece, gamma)
        edges = tuple((links.WINDOW * r, r, r + 1, link) for r, link in enumerate(chain))
        return links.path(self.n, edges, 1, k, piece, gamma)

    def broadcast(self) -> float:
        """Seconds: the pieces go down the chain from rank 0."""
        return self._chain(self.n - 1, 0.0)

    def reduce(self) -> float:
        """Seconds: the pieces come up the chain to rank 0."""
        return self._chain(self.n, self.gamma)  # combining is a hop more
