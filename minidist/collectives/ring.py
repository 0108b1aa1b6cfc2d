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
    """Fill all `chunks` from the ranks that own them. (n−1) messages, (n−1)/n·N bytes a rank."""
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
    """`flat`, combined over all ranks, on every rank: the two halves, bit for bit the same everywhere."""
    chunks = list(flat.tensor_split(comm.size))  # as `split.uneven` says
    reduce_scatter_(comm, chunks, combine)
    all_gather(comm, chunks)


def broadcast(comm: Comm, flat: Tensor, root: int) -> None:
    """Scatter, then all-gather: time about 2Nβ for any n, where the naive one takes (n−1)Nβ.

    Van de Geijn's long-message broadcast (Barnett et al. 1994).
    """
    chunks = list(flat.tensor_split(comm.size))
    naive.scatter(comm, chunks, root)
    all_gather(comm, chunks)


def reduce(comm: Comm, flat: Tensor, root: int, combine) -> None:
    """Reduce-scatter, then gather at `root`; `flat` of the other ranks stays as it was."""
    chunks = list(flat.tensor_split(comm.size))
    done = list(chunks)
    if comm.rank != root:
        done[comm.rank] = torch.empty_like(chunks[comm.rank])
    reduce_scatter(comm, chunks, done[comm.rank], combine)
    naive.gather(comm, done, root)


def all_to_all(comm: Comm, outputs: list[Tensor], inputs: list[Tensor]) -> None:
    """n−1 steps; in step k everyone sends to the k-th to its right, so no wire is waited for."""
    n, r = comm.size, comm.rank
    outputs[r].copy_(inputs[r])
    for k in range(1, n):
        to, source = (r + k) % n, (r - k) % n
        comm.sendrecv(inputs[to], to, outputs[source], source, label="all-to-all")


def barrier(comm: Comm, token: Tensor) -> None:
    """Dissemination: in round k hear from the 2^k-th to the left. ⌈log₂ n⌉ messages a rank (Hensgen et al. 1988)."""
    heard, distance = token.clone(), 1
    while distance < comm.size:
        to, source = (comm.rank + distance) % comm.size, (comm.rank - distance) % comm.size
        comm.sendrecv(token, to, heard, source, label="barrier")
        distance *= 2


class Cost(Formulas):
    """All ranks are in step, so each step takes as long as its slowest link.

    Thakur, Rabenseifner and Gropp 2005, section 4; Patarasuk and Yuan 2009; Chan et al. 2007.
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
