"""Collectives without a buffer for the result: each rank's part is a tensor that is there already.

    rank   before            all_gather_       before            reduce_scatter_
    0      [a] [·] [·]       [a] [b] [c]       [a0] [b0] [c0]    [a0+a1+a2] [?] [?]
    1      [·] [b] [·]       [a] [b] [c]       [a1] [b1] [c1]    [?] [b0+b1+b2] [?]

`chunks[r]` is flat and belongs to rank r; lengths may differ and be zero, the same list of lengths on every rank.
They send what the verbs send (ring: n−1 messages, (n−1)/n·N bytes a rank) and take no memory for N bytes: the ring one
chunk for the sum, nothing to gather. For that the other chunks of a sum become scratch, `?`: who reduces gradients to
their owners has no use for them. Used where the parts are views of what stays: parameters in a flat buffer, gradients
where autograd has put them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..comm.base import Comm
from .dispatch import OPS, check_op, chosen, collective, mean, native, nbytes
from .flat import beside

# algorithms that take each chunk by itself, wherever it lies
ANYWHERE = ("naive", "ring", "pipelined")


def all_gather_(comm: Comm, chunks: list[Tensor], algorithm=None) -> None:
    """Fill the other ranks' chunks; this rank's is there."""
    _check(comm, chunks)
    if run := native(comm, algorithm):
        run.all_gather(chunks)
        return
    near = _near(comm, chunks, algorithm)
    with collective(comm, "all_gather_", _whole(chunks), algorithm):
        chosen(comm, "all_gather", algorithm, nbytes(near))(comm, near)
    if near is not chunks:
        for chunk, got in zip(chunks, near, strict=True):
            chunk.copy_(got)


def reduce_scatter_(comm: Comm, chunks: list[Tensor], op: str = "sum", algorithm=None) -> None:
    """This rank's chunk becomes all ranks' combined; what the others hold afterwards is of no use."""
    _check(comm, chunks)
    check_op(chunks, op)
    mine = chunks[comm.rank]
    if run := native(comm, algorithm):
        run.reduce_scatter(chunks, op)
    else:
        near = _near(comm, chunks, algorithm)
        with collective(comm, "reduce_scatter_", _whole(chunks), algorithm, op=op):
            chosen(comm, "reduce_scatter", algorithm, nbytes(near))(comm, near, mine, OPS[op])
    mean(mine, op, comm.size)


def _check(comm: Comm, chunks: list[Tensor]) -> None:
    if len(chunks) != comm.size:
        raise ValueError(f"{len(chunks)} chunks were given for {comm.size} ranks")
    for r, chunk in enumerate(chunks):
        if chunk.ndim != 1 or not chunk.is_contiguous() or chunk.dtype != chunks[0].dtype:
            raise ValueError(
                f"chunk {r} is {tuple(chunk.shape)} {chunk.dtype} with strides {chunk.stride()}: "
                f"all are flat, contiguous and {chunks[0].dtype}, as chunk 0"
            )


def _whole(chunks: list[Tensor]) -> list[tuple[int]]:
    """The shape of all chunks together; where one of them differs, its own message tells."""
    return [(sum(chunk.numel() for chunk in chunks),)]


def _near(comm: Comm, chunks: list[Tensor], algorithm) -> list[Tensor]:
    """`chunks`, or a copy of them in one buffer for an algorithm that sends several as one message."""
    if (algorithm or comm.algorithm) in ANYWHERE or beside(chunks):
        return chunks
    return list(torch.cat(chunks).split([chunk.numel() for chunk in chunks]))
