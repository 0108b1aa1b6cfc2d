"""The obvious algorithms: one rank does all the talking, or everyone talks to everyone.

Kept because they are the oracle of the others, the best choice for tiny messages, and what a ring is
measured against: an all-reduce moves 2(n−1)·N bytes through the wire of rank 0, in nα + 2(n−1)Nβ.
Here `flat` is a flat tensor of N bytes, the same length everywhere; so is a chunk, and `chunks[i]` belongs
to rank i; lengths of chunks may differ and be zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..comm.base import Comm, Recv, Send, Work
from .buffers import copy_into
from .links import Formulas, slowest


def _others(comm: Comm) -> list[int]:
    return [r for r in range(comm.size) if r != comm.rank]


def broadcast(comm: Comm, flat: Tensor, root: int) -> None:
    """`root` sends everything to each rank: n−1 messages, (n−1)N bytes out of one wire, α + (n−1)Nβ.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import naive
    >>> def program(comm):
    ...     flat = torch.full((2,), float(comm.rank))
    ...     naive.broadcast(comm, flat, root=1)
    ...     return flat.tolist()
    >>> results = World(3).run(program)
    >>> results, [results.trace.bytes_sent(rank) for rank in range(3)]
    ([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]], [0, 16, 0])
    """
    if comm.rank == root:
        comm.batch([Send(flat, r, "broadcast") for r in _others(comm)]).wait()
    else:
        comm.recv(flat, root, "broadcast")


def reduce(comm: Comm, flat: Tensor, root: int, combine) -> None:
    """Every rank sends to `root`, which takes and combines them in rank order: (n−1)(α + Nβ).

    In place at `root`; the others keep theirs. combine: `combine(a, b)` makes `a` the combination, such as `Tensor.add_`.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import naive
    >>> def program(comm):
    ...     flat = torch.tensor([1, 10]) * comm.rank
    ...     naive.reduce(comm, flat, 0, torch.Tensor.add_)
    ...     return flat.tolist()
    >>> World(4).run(program)
    [[6, 60], [1, 10], [2, 20], [3, 30]]
    """
    if comm.rank != root:
        comm.send(flat, root, "reduce")
        return
    received = torch.empty_like(flat)
    for r in _others(comm):
        combine(flat, comm.recv(received, r, "reduce"))


def all_reduce(comm: Comm, flat: Tensor, combine) -> None:
    """Reduce to rank 0, then broadcast from it.

    In place on every rank: all that is sent passes the wire of rank 0.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import naive
    >>> def program(comm):
    ...     flat = torch.tensor([1.0, 10.0]) * comm.rank
    ...     naive.all_reduce(comm, flat, torch.Tensor.add_)
    ...     return flat.tolist()
    >>> results = World(4).run(program)
    >>> results[2], [results.trace.bytes_sent(rank) for rank in range(4)]
    ([6.0, 60.0], [24, 8, 8, 8])
    """
    reduce(comm, flat, 0, combine)
    broadcast(comm, flat, 0)


def scatter(comm: Comm, chunks: list[Tensor], root: int) -> None:
    """`root` sends chunk i to rank i, which has it in `chunks[i]` then; the other chunks stay as they were.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import naive
    >>> def program(comm):
    ...     flat = torch.arange(3) if comm.rank == 0 else torch.zeros(3, dtype=torch.int64)
    ...     naive.scatter(comm, list(flat.split(1)), root=0)
    ...     return flat.tolist()
    >>> World(3).run(program)
    [[0, 1, 2], [0, 1, 0], [0, 0, 2]]
    """
    if comm.rank == root:
        comm.batch([Send(chunks[r], r, "scatter") for r in _others(comm)]).wait()
    else:
        comm.recv(chunks[comm.rank], root, "scatter")


def gather(comm: Comm, chunks: list[Tensor], root: int) -> None:
    """Rank i sends chunk i to `root`, which has all of them in `chunks` then.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import naive
    >>> def program(comm):
    ...     flat = torch.zeros(3, dtype=torch.int64)
    ...     flat[comm.rank] = comm.rank + 1
    ...     naive.gather(comm, list(flat.split(1)), root=0)
    ...     return flat.tolist()
    >>> World(3).run(program)
    [[1, 2, 3], [0, 2, 0], [0, 0, 3]]
    """
    if comm.rank == root:
        comm.batch([Recv(chunks[r], r, "gather") for r in _others(comm)]).wait()
    else:
        comm.send(chunks[comm.rank], root, "gather")


def all_gather(comm: Comm, chunks: list[Tensor]) -> None:
    """Everyone sends its chunk to everyone: n−1 messages a rank, all under way at once, α + (n−1)/n·Nβ.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import naive
    >>> def program(comm):
    ...     flat = torch.zeros(3, dtype=torch.int64)
    ...     flat[comm.rank] = comm.rank + 1
    ...     naive.all_gather(comm, list(flat.split(1)))
    ...     return flat.tolist()
    >>> results = World(3).run(program)
    >>> results, results.trace.messages(rank=0)
    ([[1, 2, 3], [1, 2, 3], [1, 2, 3]], 2)
    """
    _exchange(comm, chunks, [chunks[comm.rank]] * comm.size, "all-gather")


def _exchange(comm: Comm, outputs: list[Tensor], inputs: list[Tensor], label: str) -> None:
    """`inputs[r]` to rank r, `outputs[r]` from it.

    The k-th pair of operations is to the k-th on the right and from the k-th on the left: so no two ranks
    begin with the same wire, where in rank order all would send to rank 0 first.
    """
    n, rank = comm.size, comm.rank
    works: list[Work] = []
    for k in range(1, n):
        to, source = (rank + k) % n, (rank - k) % n
        ops: list[Send | Recv] = [Send(inputs[to], to, label), Recv(outputs[source], source, label)]
        works.append(comm.batch(ops, after=works[-1] if works else None))
    for work in works:
        work.wait()


def reduce_scatter(comm: Comm, chunks: list[Tensor], out: Tensor, combine) -> None:
    """Everyone sends chunk i to rank i, which combines in rank order. n−1 copies of a chunk in memory.

    `out` becomes the result; it may be `chunks[comm.rank]` itself.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import naive
    >>> def program(comm):
    ...     chunks = list((torch.tensor([1, 10, 100]) * (comm.rank + 1)).split(1))
    ...     out = torch.zeros_like(chunks[comm.rank])
    ...     naive.reduce_scatter(comm, chunks, out, torch.Tensor.add_)
    ...     return out.item()
    >>> World(3).run(program)
    [6, 60, 600]
    """
    # first: whose part `out` holds before the others are combined with it
    mine, first = chunks[comm.rank], comm.rank
    parts = [mine if r == comm.rank else torch.empty_like(mine) for r in range(comm.size)]
    if comm.size == 1:
        copy_into(mine, out)
    elif out is not mine:
        first = 1 if comm.rank == 0 else 0
        parts[first] = out
    _exchange(comm, parts, chunks, "reduce-scatter")
    for r, part in enumerate(parts):
        if r != first:
            combine(out, part)


def all_to_all(comm: Comm, outputs: list[Tensor], inputs: list[Tensor]) -> None:
    """Everyone sends to everyone, all at once: α + (n−1)/n·Nβ.

    `inputs[r]` goes to rank r, `outputs[r]` comes from it.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import naive
    >>> def program(comm):
    ...     inputs = list((torch.arange(3) + 10 * comm.rank).split(1))
    ...     outputs = [torch.zeros_like(x) for x in inputs]
    ...     naive.all_to_all(comm, outputs, inputs)
    ...     return torch.cat(outputs).tolist()
    >>> World(3).run(program)
    [[0, 10, 20], [1, 11, 21], [2, 12, 22]]
    """
    outputs[comm.rank].copy_(inputs[comm.rank])
    _exchange(comm, outputs, inputs, "all-to-all")


def barrier(comm: Comm, token: Tensor) -> None:
    """All report to rank 0, which then lets all go.

    token: what is sent, a small tensor.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import naive
    >>> results = World(4).run(lambda comm: naive.barrier(comm, torch.zeros(1, dtype=torch.uint8)))
    >>> results.trace.messages(rank=0), results.trace.messages(rank=3)
    (3, 1)
    """
    tokens = [token.clone() for _ in range(comm.size)]
    gather(comm, tokens, 0)
    broadcast(comm, token, 0)


class Cost(Formulas):
    """α for each message that is waited for, Nβ for each that passes the same wire (Hockney 1994; Chan et al. 2007).

    >>> from minidist.collectives import naive
    >>> from minidist.collectives.links import Net
    >>> from minidist.comm import Link
    >>> net = Net(4, lambda dst, src: Link(alpha=1.0, beta=0.5))
    >>> naive.Cost(net, nbytes=16).all_reduce()  # 4α + 6Nβ
    52.0
    """

    def broadcast(self) -> float:
        """α + (n−1)Nβ; over each kind of link (a port of the root's of its own) at once."""
        star = self.net.star
        kinds = [
            [link for link in star if link.beta == beta] for beta in {link.beta for link in star}
        ]
        times = [slowest(kind, 0) + sum(self.nbytes * link.beta for link in kind) for kind in kinds]
        return max(times, default=0.0)

    def reduce(self) -> float:
        """(n−1)(α + Nβ + Nγ)"""
        return sum(link.alpha + self.nbytes * (link.beta + self.gamma) for link in self.net.star)

    def all_reduce(self) -> float:
        """(n−1)(α + Nβ + Nγ) + α + (n−1)Nβ: a reduce, then a broadcast"""
        return self.reduce() + self.broadcast()

    def scatter(self) -> float:
        """α + (n−1)/n·Nβ; a gather takes as long"""
        return Cost(self.net, self.chunk).broadcast()

    gather = scatter

    def all_to_all(self) -> float:
        """Every wire out and every wire in is busy all the time, at the pace of the slowest."""
        crossing = self.net.crossing if self.n > 1 else []
        latency = slowest(crossing, 0)
        return latency + (self.n - 1) * max(0.0, slowest(crossing, self.chunk) - latency)

    all_gather = all_to_all

    def reduce_scatter(self) -> float:
        """α + (n−1)/n·N(β + γ)"""
        return self.all_to_all() + (self.n - 1) * self.chunk * self.gamma

    def barrier(self) -> float:
        """2(α + (n−1)Nβ), N being the byte of the token"""
        return 2 * self.broadcast()
