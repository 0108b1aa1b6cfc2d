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
    """The collectives of a TorchComm's group. "mean" is a sum here; the caller divides."""

    def __init__(self, comm):
        self._comm = comm

    @functools.cached_property
    def _group(self):
        comm = self._comm
        if comm.size == dist.get_world_size(comm.group):
            return comm.group
        everyone = [dist.get_global_rank(comm.group, r) for r in comm.ranks]
        return dist.new_group(everyone, use_local_synchronization=True)

    def broadcast(self, flat: Tensor, root: int) -> None:
        dist.broadcast(flat, group_src=root, group=self._group)

    def reduce(self, flat: Tensor, root: int, op: str) -> None:
        kept = flat.clone()  # the library may overwrite the tensors of the other ranks
        dist.reduce(flat, group_dst=root, op=_OPS[op], group=self._group)
        if self._comm.rank != root:
            flat.copy_(kept)

    def all_reduce(self, flat: Tensor, op: str) -> None:
        dist.all_reduce(flat, op=_OPS[op], group=self._group)

    def reduce_scatter(self, chunks: list[Tensor], op: str) -> None:
        padded = _padded(chunks)
        out = torch.empty_like(padded[0])
        dist.reduce_scatter(out, padded, op=_OPS[op], group=self._group)
        chunks[self._comm.rank].copy_(out[: chunks[self._comm.rank].numel()])

    def all_gather(self, chunks: list[Tensor]) -> None:
        padded = _padded(chunks)
        dist.all_gather(padded, padded[self._comm.rank].clone(), group=self._group)
        _unpad(chunks, padded)

    def gather(self, chunks: list[Tensor], root: int) -> None:
        padded = _padded(chunks)
        at_root = self._comm.rank == root
        dist.gather(padded[self._comm.rank].clone(), padded if at_root else None, group_dst=root, group=self._group)
        if at_root:
            _unpad(chunks, padded)

    def scatter(self, chunks: list[Tensor], root: int) -> None:
        padded = _padded(chunks)
        out = torch.empty_like(padded[0])
        dist.scatter(out, padded if self._comm.rank == root else None, group_src=root, group=self._group)
        chunks[self._comm.rank].copy_(out[: chunks[self._comm.rank].numel()])

    def all_to_all(self, outputs: list[Tensor], inputs: list[Tensor]) -> None:
        out, into = torch.cat(outputs), torch.cat(inputs)
        dist.all_to_all_single(out, into, [o.numel() for o in outputs], [i.numel() for i in inputs], group=self._group)
        for chunk, values in zip(outputs, out.split([o.numel() for o in outputs]), strict=True):
            chunk.copy_(values)

    def barrier(self) -> None:
        dist.barrier(group=self._group)


def _padded(chunks: list[Tensor]) -> list[Tensor]:
    longest = max(c.numel() for c in chunks)
    return [torch.nn.functional.pad(c, (0, longest - c.numel())) for c in chunks]


def _unpad(chunks: list[Tensor], padded: list[Tensor]) -> None:
    for chunk, values in zip(chunks, padded, strict=True):
        chunk.copy_(values[: chunk.numel()])
