"""Ring algorithms: every rank sends to its right neighbour and receives from its left, n−1 times.

All-reduce is two halves. Reduce-scatter: chunk i sets out from rank i+1 and each rank on its way adds its
own, so that it is finished at rank i. All-gather: the finished chunks go around once more.

            step 1      step 2           it owns          all-gather: n−1 steps more
    rank 0  c0 ─▶ 1     b2 + b0 ─▶ 1     a1 + a2 + a0
    rank 1  a1 ─▶ 2     c0 + c1 ─▶ 2     b2 + b0 + b1     2(n−1) messages a rank, 2(n−1)/n·N bytes,
    rank 2  b2 ─▶ 0     a1 + a2 ─▶ 0     c0 + c1 + c2     time 2(n−1)α + 2(n−1)/n·Nβ

Bytes a rank do not grow with n: no algorithm sends fewer (Patarasuk and Yuan 2009, Theorem 1). Here
`flat` is a flat tensor of N bytes, and a chunk a part of it; `chunks[i]` belongs to rank i; lengths may
differ and be zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..comm.base import Comm
from . import naive
from .links import Formulas, slowest


def reduce_scatter_(comm: Comm, chunks: list[Tensor], combine) -> None:
    """In place: a rank combines what it receives with its own chunk, and passes that on; the last one is finished.

    The other chunks hold what was combined so far. (n−1) messages, (n−1)/n·N bytes a rank, one buffer of one chunk.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import ring
    >>> def program(comm):
    ...     flat = torch.tensor([1, 10, 100]) * (comm.rank + 1)
    ...     ring.reduce_scatter_(comm, list(flat.split(1)), torch.Tensor.add_)
    ...     return flat.tolist()
    >>> World(3).run(program)  # 6, 60 and 600 are finished
    [[6, 40, 100], [2, 60, 300], [5, 30, 600]]
    """
    n, r = comm.size, comm.rank
    sizes = {chunk.numel() for chunk in chunks} if n > 1 else {0}
    buffer = torch.empty(max(sizes), dtype=chunks[r].dtype, device=chunks[r].device)
    buffers = {size: buffer[:size] for size in sizes}
    for step in range(n - 1):
        partial = chunks[(r - 1 - step) % n]
        own = chunks[(r - 2 - step) % n]
        received = buffers[own.numel()]
        comm.sendrecv(partial, (r + 1) % n, received, (r - 1) % n, label="reduce-scatter")
        combine(own, received)


def reduce_scatter(comm: Comm, chunks: list[Tensor], out: Tensor, combine) -> None:
    """`out` becomes chunk `comm.rank`, combined over all ranks; the chunks are only read. As many messages and bytes.

    Two buffers of one chunk: a rank must not receive into the one that it sends from.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import ring
    >>> def program(comm):
    ...     chunks = list((torch.tensor([1, 10, 100]) * (comm.rank + 1)).split(1))
    ...     out = torch.zeros_like(chunks[comm.rank])
    ...     ring.reduce_scatter(comm, chunks, out, torch.Tensor.add_)
    ...     return out.item(), torch.cat(chunks).tolist()
    >>> World(3).run(program)
    [(6, [1, 10, 100]), (60, [2, 20, 200]), (600, [3, 30, 300])]
    """
    n, r = comm.size, comm.rank
    if out is chunks[r]:
        reduce_scatter_(comm, chunks, combine)
        return
    if n == 1:
        out.copy_(chunks[0])
        return
    sizes = {chunk.numel() for chunk in chunks}
    both = out.new_empty(min(2, n - 2), max(sizes)).unbind()
    buffers = {size: [buffer[:size] for buffer in both] for size in sizes}
    partial = chunks[(r - 1) % n]
    for step in range(n - 2):
        own = chunks[(r - 2 - step) % n]
        received = buffers[own.numel()][step % 2]
        comm.sendrecv(partial, (r + 1) % n, received, (r - 1) % n, label="reduce-scatter")
        partial = combine(received, own)
    comm.sendrecv(partial, (r + 1) % n, out, (r - 1) % n, label="reduce-scatter")
    combine(out, chunks[r])


def all_gather(comm: Comm, chunks: list[Tensor]) -> None:
    """Fill all `chunks` from the ranks that own them. (n−1) messages, (n−1)/n·N bytes a rank.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import ring
    >>> def program(comm):
    ...     flat = torch.zeros(3)
    ...     flat[comm.rank] = comm.rank + 1
    ...     ring.all_gather(comm, list(flat.split(1)))
    ...     return flat.tolist()
    >>> results = World(3).run(program)
    >>> results, results.trace.bytes_sent(rank=0)  # to the neighbour: its own, then what came
    ([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], 8)
    """
    n, r = comm.size, comm.rank
    for step in range(n - 1):
        comm.sendrecv(
            chunks[(r - step) % n],
            (r + 1) % n,
            chunks[(r - step - 1) % n],
            (r - 1) % n,
            label="all-gather",
        )


def all_reduce(comm: Comm, flat: Tensor, combine) -> None:
    """`flat`, combined over all ranks, on every rank: the two halves, bit for bit the same everywhere.

    In place. combine: `combine(a, b)` makes `a` the combination and returns it, such as `Tensor.add_`.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import ring
    >>> def program(comm):
    ...     flat = torch.ones(12) * comm.rank  # 48 bytes
    ...     ring.all_reduce(comm, flat, torch.Tensor.add_)
    ...     return flat[0].item()
    >>> results = World(4).run(program)
    >>> results, results.trace.messages(rank=0), results.trace.bytes_sent(rank=0)
    ([6.0, 6.0, 6.0, 6.0], 6, 72)
    """
    chunks = list(flat.tensor_split(comm.size))  # as `split.uneven` says
    reduce_scatter_(comm, chunks, combine)
    all_gather(comm, chunks)


def broadcast(comm: Comm, flat: Tensor, root: int) -> None:
    """Scatter, then all-gather: time about 2Nβ for any n, where the naive one takes (n−1)Nβ.

    Van de Geijn's long-message broadcast (Barnett et al. 1994).

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import ring
    >>> def program(comm):
    ...     flat = torch.full((8,), float(comm.rank))  # 32 bytes
    ...     ring.broadcast(comm, flat, root=2)
    ...     return flat.unique().tolist()
    >>> results = World(4).run(program)
    >>> results, [results.trace.bytes_sent(rank) for rank in range(4)]
    ([[2.0], [2.0], [2.0], [2.0]], [24, 24, 48, 24])
    """
    chunks = list(flat.tensor_split(comm.size))
    naive.scatter(comm, chunks, root)
    all_gather(comm, chunks)


def reduce(comm: Comm, flat: Tensor, root: int, combine) -> None:
    """Reduce-scatter, then gather at `root`; `flat` of the other ranks stays as it was.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import ring
    >>> def program(comm):
    ...     flat = torch.tensor([1, 10, 100]) * (comm.rank + 1)
    ...     ring.reduce(comm, flat, 0, torch.Tensor.add_)
    ...     return flat.tolist()
    >>> World(3).run(program)
    [[6, 60, 600], [2, 20, 200], [3, 30, 300]]
    """
    chunks = list(flat.tensor_split(comm.size))
    done = list(chunks)
    if comm.rank != root:
        done[comm.rank] = torch.empty_like(chunks[comm.rank])
    reduce_scatter(comm, chunks, done[comm.rank], combine)
    naive.gather(comm, done, root)


def all_to_all(comm: Comm, outputs: list[Tensor], inputs: list[Tensor]) -> None:
    """n−1 steps; in step k everyone sends to the k-th to its right, so no wire is waited for.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import ring
    >>> def program(comm):
    ...     inputs = list((torch.arange(3) + 10 * comm.rank).split(1))
    ...     outputs = [torch.zeros_like(x) for x in inputs]
    ...     ring.all_to_all(comm, outputs, inputs)
    ...     return torch.cat(outputs).tolist()
    >>> World(3).run(program)
    [[0, 10, 20], [1, 11, 21], [2, 12, 22]]
    """
    n, r = comm.size, comm.rank
    outputs[r].copy_(inputs[r])
    for k in range(1, n):
        to, source = (r + k) % n, (r - k) % n
        comm.sendrecv(inputs[to], to, outputs[source], source, label="all-to-all")


def barrier(comm: Comm, token: Tensor) -> None:
    """Dissemination: in round k hear from the 2^k-th to the left. ⌈log₂ n⌉ messages a rank (Hensgen et al. 1988).

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import ring
    >>> results = World(8).run(lambda comm: ring.barrier(comm, torch.zeros(1, dtype=torch.uint8)))
    >>> results.trace.messages(rank=0)
    3
    """
    heard, distance = token.clone(), 1
    while distance < comm.size:
        to, source = (comm.rank + distance) % comm.size, (comm.rank - distance) % comm.size
        comm.sendrecv(token, to, heard, source, label="barrier")
        distance *= 2


class Cost(Formulas):
    """All ranks are in step, so each step takes as long as its slowest link.

    Thakur, Rabenseifner and Gropp 2005, section 4; Patarasuk and Yuan 2009; Chan et al. 2007.

    >>> from minidist.collectives import ring
    >>> from minidist.collectives.links import Net
    >>> from minidist.comm import Link
    >>> net = Net(4, lambda dst, src: Link(alpha=1.0, beta=0.5))
    >>> ring.Cost(net, nbytes=16).all_reduce()  # 6α + 6/4·Nβ
    18.0
    """

    def all_gather(self) -> float:
        """(n−1)(α + N/n·β)"""
        return (self.n - 1) * slowest(self.net.ring, self.chunk)

    def reduce_scatter(self) -> float:
        """(n−1)(α + N/n·β + N/n·γ)"""
        return (self.n - 1) * (slowest(self.net.ring, self.chunk) + self.chunk * self.gamma)

    def all_reduce(self) -> float:
        """2(n−1)α + (n−1)/n·N(2β + γ)"""
        return self.reduce_scatter() + self.all_gather()

    def broadcast(self) -> float:
        """nα + 2(n−1)/n·Nβ: the last rank of the scatter is the last of the ring."""
        return naive.Cost(self.net, self.nbytes).scatter() + self.all_gather()

    def reduce(self) -> float:
        """nα + (n−1)/n·N(2β + γ)"""
        return self.reduce_scatter() + naive.Cost(self.net, self.nbytes).gather()

    def all_to_all(self) -> float:
        """(n−1)(α + N/n·β)"""
        return (self.n - 1) * slowest(self.net.crossing, self.chunk)

    def barrier(self) -> float:
        """⌈log₂n⌉(α + Nβ), N being the byte of the token"""
        rounds = range((self.n - 1).bit_length())
        return sum(slowest(self.net.apart(1 << i), self.nbytes) for i in rounds)
