"""The obvious algorithms: one rank does all the talking, or everyone talks to everyone.

Kept because they are the oracle of the others, the best choice for tiny messages, and what a ring is
measured against: an all-reduce moves 2(n−1)·N bytes through the wire of rank 0, in nα + 2(n−1)Nβ.
Here `flat` is a flat tensor of N bytes, the same length everywhere; so is a chunk, and `chunks[i]` belongs
to rank i; lengths of chunks may differ and be zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..comm.base import Comm, Recv, Send


def _others(comm: Comm) -> list[int]:
    return [r for r in range(comm.size) if r != comm.rank]


def broadcast(comm: Comm, flat: Tensor, root: int) -> None:
    """`root` sends everything to each rank: n−1 messages, (n−1)N bytes out of one wire, α + (n−1)Nβ."""
    if comm.rank == root:
        comm.batch([Send(flat, r, "broadcast") for r in _others(comm)]).wait()
    else:
        comm.recv(flat, root, "broadcast")


def reduce(comm: Comm, flat: Tensor, root: int, combine) -> None:
    """Every rank sends to `root`, which takes and combines them in rank order: (n−1)(α + Nβ)."""
    if comm.rank != root:
        comm.send(flat, root, "reduce")
        return
    received = torch.empty_like(flat)
    for r in _others(comm):
        combine(flat, comm.recv(received, r, "reduce"))


def all_reduce(comm: Comm, flat: Tensor, combine) -> None:
    """Reduce to rank 0, then broadcast from it."""
    reduce(comm, flat, 0, combine)
    broadcast(comm, flat, 0)


def scatter(comm: Comm, chunks: list[Tensor], root: int) -> None:
    """`root` sends chunk i to rank i."""
    if comm.rank == root:
        comm.batch([Send(chunks[r], r, "scatter") for r in _others(comm)]).wait()
    else:
        comm.recv(chunks[comm.rank], root, "scatter")


def gather(comm: Comm, chunks: list[Tensor], root: int) -> None:
    """Rank i sends chunk i to `root`."""
    if comm.rank == root:
        comm.batch([Recv(chunks[r], r, "gather") for r in _others(comm)]).wait()
    else:
        comm.send(chunks[comm.rank], root, "gather")


def all_gather(comm: Comm, chunks: list[Tensor]) -> None:
    """Everyone sends its chunk to everyone: n−1 messages a rank, all at once."""
    mine = chunks[comm.rank]
    sends = [Send(mine, r, "all-gather") for r in _others(comm)]
    comm.batch(sends + [Recv(chunks[r], r, "all-gather") for r in _others(comm)]).wait()


def reduce_scatter(comm: Comm, chunks: list[Tensor], out: Tensor, combine) -> None:
    """Everyone sends chunk i to rank i, which combines in rank order. n copies of a chunk in memory."""
    received = [torch.empty_like(chunks[comm.rank]) for _ in range(comm.size)]
    all_to_all(comm, received, chunks)
    out.copy_(received[0])
    for values in received[1:]:
        combine(out, values)


def all_to_all(comm: Comm, outputs: list[Tensor], inputs: list[Tensor]) -> None:
    """Everyone sends to everyone, all at once."""
    outputs[comm.rank].copy_(inputs[comm.rank])
    sends = [Send(inputs[r], r, "all-to-all") for r in _others(comm)]
    comm.batch(sends + [Recv(outputs[r], r, "all-to-all") for r in _others(comm)]).wait()


def barrier(comm: Comm, token: Tensor) -> None:
    """All report to rank 0, which then lets all go."""
    tokens = [token.clone() for _ in range(comm.size)]
    gather(comm, tokens, 0)
    broadcast(comm, token, 0)
