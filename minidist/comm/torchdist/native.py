"""torch.distributed's own collectives, behind the same calls as ours: `algorithm="native"`.

Each works on flat chunks, chunk i belonging to rank i, as `minidist.collectives` lays them out. Where the
library wants chunks of one size, uneven ones are padded. Bytes moved here are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from .named import named_group

_OPS = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "prod": dist.ReduceOp.PRODUCT,
}

# Their names since PyTorch 2.13, where the older ones warn.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Native:
    """The collectives of a TorchComm's group. "mean" is a sum here; the caller divides.

    What has been posted starts before each: over NCCL both are in one stream, in the same order on every rank.
    """

    def __init__(self, comm):
        self._comm, self._own = comm, None

    @property
    def _group(self) -> dist.ProcessGroup:
        """A group of the Comm's ranks, in their order; made at the first use, in a lane's thread or the program's."""
        comm = self._comm
        if comm.channel == "main" or comm.nccl:
            return comm.group
        if self._own is None:
            self._own = named_group(comm.group, comm.ranks, f"{comm.channel}/native", comm.timeout)
        return self._own

    def _begin(self) -> None:
        self._comm.check_usable()
        self._comm.start_all()

    def broadcast(self, flat: Tensor, root: int) -> None:
        self._begin()
        dist.broadcast(flat, group_src=root, group=self._group)

    def reduce(self, flat: Tensor, root: int, op: str) -> None:
        self._begin()
        kept = flat.clone()  # the library may overwrite the tensors of the other ranks
        dist.reduce(flat, group_dst=root, op=_OPS[op], group=self._group)
        if self._comm.rank != root:
            flat.copy_(kept)

    def all_reduce(self, flat: Tensor, op: str) -> None:
        self._begin()
        dist.all_reduce(flat, op=_OPS[op], group=self._group)

    def reduce_scatter(self, chunks: list[Tensor], op: str) -> None:
        self._begin()
        mine = chunks[self._comm.rank]
        flat = _joined(chunks)
        out = torch.empty(flat.numel() // len(chunks), dtype=flat.dtype, device=flat.device)
        _reduce_scatter(out, flat, op=_OPS[op], group=self._group)
        mine.copy_(out[: mine.numel()])

    def all_gather(self, chunks: list[Tensor]) -> None:
        self._begin()
        flat = _joined(chunks)
        padded = flat.chunk(len(chunks)) if flat.numel() else chunks
        _all_gather(flat, padded[self._comm.rank].clone(), group=self._group)
        _unpad(chunks, padded)

    def gather(self, chunks: list[Tensor], root: int) -> None:
        self._begin()
        padded = _padded(chunks)
        into = padded if self._comm.rank == root else None
        dist.gather(padded[self._comm.rank].clone(), into, group_dst=root, group=self._group)
        if into is not None:
            _unpad(chunks, padded)

    def scatter(self, chunks: list[Tensor], root: int) -> None:
        self._begin()
        # the root knows
        longest = chunks[0].new_tensor([max(c.numel() for c in chunks)], dtype=torch.int64)
        dist.all_reduce(longest, op=dist.ReduceOp.MAX, group=self._group)
        padded = _padded(chunks, int(longest))
        out, mine = torch.empty_like(padded[0]), chunks[self._comm.rank]
        given = padded if self._comm.rank == root else None
        dist.scatter(out, given, group_src=root, group=self._group)
        mine.copy_(out[: mine.numel()])

    def all_to_all(self, outputs: list[Tensor], inputs: list[Tensor]) -> None:
        self._begin()
        out, into = torch.cat(outputs), torch.cat(inputs)
        dist.all_to_all_single(
            out, into, [o.numel() for o in outputs], [i.numel() for i in inputs], group=self._group
        )
        for chunk, values in zip(outputs, out.split([o.numel() for o in outputs]), strict=True):
            chunk.copy_(values)

    def barrier(self) -> None:
        self._begin()
        dist.barrier(group=self._group)


def _padded(chunks: list[Tensor], longest: int = 0) -> list[Tensor]:
    longest = max(longest, *(c.numel() for c in chunks))
    return [torch.nn.functional.pad(c, (0, longest - c.numel())) for c in chunks]


def _unpad(chunks: Sequence[Tensor], padded: Sequence[Tensor]) -> None:
    for chunk, values in zip(chunks, padded, strict=True):
        if chunk.data_ptr() != values.data_ptr():
            chunk.copy_(values[: chunk.numel()])


def _joined(chunks: list[Tensor]) -> Tensor:
    """All chunks in one tensor, each as long as the longest: their own memory where they lie so already."""
    first, step = chunks[0], chunks[0].nbytes
    if all(
        c.numel() == first.numel() and c.data_ptr() == first.data_ptr() + i * step
        for i, c in enumerate(chunks)
    ):
        if first.untyped_storage().data_ptr() == chunks[-1].untyped_storage().data_ptr():
            return first.as_strided((first.numel() * len(chunks),), (1,))
    return torch.cat(_padded(chunks))
