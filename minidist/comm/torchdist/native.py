"""torch.distributed's own collectives, behind the same calls as ours: `algorithm="native"`.

Each works on flat chunks, chunk i belonging to rank i, as `minidist.collectives` lays them out. Where the
library wants chunks of one size, uneven ones are padded. Bytes moved here are not counted.
"""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
from torch import Tensor

_OPS = {"sum": dist.ReduceOp.SUM, "mean": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX,
        "prod": dist.ReduceOp.PRODUCT}  # fmt: skip


class Native:
    """The collectives of a TorchComm's group. "mean" is a sum here; the caller divides.

    What the Comm has posted starts before each: over NCCL both are in one stream, in the same order on every rank.
    """

    def __init__(self, comm):
        self._comm = comm

    @functools.cached_property
    def _group(self):
        comm = self._comm
        if comm.channel == "main" or comm.nccl:
            return comm.group
        everyone = [dist.get_global_rank(comm.group, r) for r in comm.ranks]
        return dist.new_group(everyone, use_local_synchronization=True)

    @functools.cached_property
    def _places(self) -> list[int]:
        """Where each of the Comm's ranks is in the group, which sorts them."""
        everyone = [dist.get_global_rank(self._comm.group, r) for r in self._comm.ranks]
        return [dist.get_group_rank(self._group, r) for r in everyone]

    def open(self) -> None:
        """Make the group, if one has to be made: on all ranks at the same point of the program."""
        _ = self._group

    def _arranged(self, chunks: list[Tensor]) -> list[Tensor]:
        """Chunks in the order of the group's ranks."""
        return [chunk for _, chunk in sorted(zip(self._places, chunks, strict=True), key=lambda pair: pair[0])]

    def broadcast(self, flat: Tensor, root: int) -> None:
        self._comm.start()
        dist.broadcast(flat, group_src=self._places[root], group=self._group)

    def reduce(self, flat: Tensor, root: int, op: str) -> None:
        self._comm.start()
        kept = flat.clone()  # the library may overwrite the tensors of the other ranks
        dist.reduce(flat, group_dst=self._places[root], op=_OPS[op], group=self._group)
        if self._comm.rank != root:
            flat.copy_(kept)

    def all_reduce(self, flat: Tensor, op: str) -> None:
        self._comm.start()
        dist.all_reduce(flat, op=_OPS[op], group=self._group)

    def reduce_scatter(self, chunks: list[Tensor], op: str) -> None:
        self._comm.start()
        padded = _padded(chunks)
        out, mine = torch.empty_like(padded[0]), chunks[self._comm.rank]
        dist.reduce_scatter(out, self._arranged(padded), op=_OPS[op], group=self._group)
        mine.copy_(out[: mine.numel()])

    def all_gather(self, chunks: list[Tensor]) -> None:
        self._comm.start()
        padded = _padded(chunks)
        dist.all_gather(self._arranged(padded), padded[self._comm.rank].clone(), group=self._group)
        _unpad(chunks, padded)

    def gather(self, chunks: list[Tensor], root: int) -> None:
        self._comm.start()
        padded = _padded(chunks)
        into = self._arranged(padded) if self._comm.rank == root else None
        dist.gather(padded[self._comm.rank].clone(), into, group_dst=self._places[root], group=self._group)
        if into is not None:
            _unpad(chunks, padded)

    def scatter(self, chunks: list[Tensor], root: int) -> None:
        self._comm.start()
        longest = chunks[0].new_tensor([max(c.numel() for c in chunks)], dtype=torch.int64)  # the root knows
        dist.all_reduce(longest, op=dist.ReduceOp.MAX, group=self._group)
        padded = _padded(chunks, int(longest))
        out, mine = torch.empty_like(padded[0]), chunks[self._comm.rank]
        given = self._arranged(padded) if self._comm.rank == root else None
        dist.scatter(out, given, group_src=self._places[root], group=self._group)
        mine.copy_(out[: mine.numel()])

    def all_to_all(self, outputs: list[Tensor], inputs: list[Tensor]) -> None:
        self._comm.start()
        outputs, inputs = self._arranged(outputs), self._arranged(inputs)
        out, into = torch.cat(outputs), torch.cat(inputs)
        dist.all_to_all_single(out, into, [o.numel() for o in outputs], [i.numel() for i in inputs], group=self._group)
        for chunk, values in zip(outputs, out.split([o.numel() for o in outputs]), strict=True):
            chunk.copy_(values)

    def barrier(self) -> None:
        self._comm.start()
        dist.barrier(group=self._group)


def _padded(chunks: list[Tensor], longest: int = 0) -> list[Tensor]:
    longest = max(longest, *(c.numel() for c in chunks))
    return [torch.nn.functional.pad(c, (0, longest - c.numel())) for c in chunks]


def _unpad(chunks: list[Tensor], padded: list[Tensor]) -> None:
    for chunk, values in zip(chunks, padded, strict=True):
        chunk.copy_(values[: chunk.numel()])
