"""Tensors of any shape as the flat chunks that algorithms work on, and back.

One contiguous tensor becomes views of itself: nothing is copied. Several tensors, or a strided one, are
copied into one buffer (coalesced: one message where there were many), and back when they are results.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Flat:
    """`tensors` (one dtype) as one flat buffer, in which results are written back by `restore`."""

    def __init__(self, tensors: list[Tensor]):
        self.tensors = [t.detach() for t in tensors]
        self._shared = len(tensors) == 1 and tensors[0].is_contiguous()
        self.buffer = (
            self.tensors[0].view(-1)
            if self._shared
            else torch.cat([t.reshape(-1) for t in self.tensors])
        )

    def restore(self) -> None:
        """Copy the buffer back into the tensors, where it is not their own memory."""
        if not self._shared:
            parts = self.buffer.split([t.numel() for t in self.tensors])
            for tensor, part in zip(self.tensors, parts, strict=True):
                tensor.copy_(part.view(tensor.shape))


def rows(tensors: list[Tensor], sizes: list[list[int]]) -> list[Tensor]:
    """For each rank one flat chunk: its `sizes[t][rank]` rows of every tensor t, one after the other."""
    parts = [
        torch.atleast_1d(t.detach()).contiguous().split(s)
        for t, s in zip(tensors, sizes, strict=True)
    ]
    if len(parts) == 1:
        return [part.view(-1) for part in parts[0]]
    by_rank = list(zip(*parts, strict=True))
    lengths = [sum(part.numel() for part in of_rank) for of_rank in by_rank]
    return list(
        torch.cat([part.reshape(-1) for of_rank in by_rank for part in of_rank]).split(lengths)
    )


class Rows:
    """Room for every tensor's rows of every rank: `chunks[rank]` is flat, `tensors()` puts the rows together.

    `rests[t]`: the shape of tensor t after its first dimension.
    """

    def __init__(self, like: Tensor, rests: list[torch.Size], sizes: list[list[int]]):
        self._rests, self._sizes = rests, sizes
        lengths = [
            [size * rest.numel() for size in s] for s, rest in zip(sizes, rests, strict=True)
        ]
        self._lengths = list(zip(*lengths, strict=True))  # by rank, then tensor
        self._buffer = scratch(like, sum(map(sum, lengths)))
        self.chunks = list(self._buffer.split([sum(of_rank) for of_rank in self._lengths]))

    def tensors(self) -> list[Tensor]:
        if len(self._rests) == 1:
            return [self._buffer.view(sum(self._sizes[0]), *self._rests[0])]
        parts = [
            chunk.split(lengths) for chunk, lengths in zip(self.chunks, self._lengths, strict=True)
        ]
        joined = [torch.cat(of_tensor) for of_tensor in zip(*parts, strict=True)]
        return [
            flat.view(sum(s), *rest)
            for flat, rest, s in zip(joined, self._rests, self._sizes, strict=True)
        ]


def adjacent_view(chunks: list[Tensor], first: int, end: int) -> Tensor:
    """Chunks `first` … `end−1` as one flat view. They lie one after the other in one buffer, as all chunks here do."""
    total = sum(chunk.numel() for chunk in chunks[first:end])
    # also where there is nothing at all, and offsets mean nothing
    if total == chunks[first].numel():
        return chunks[first]
    return chunks[first].as_strided((total,), (1,), chunks[first].storage_offset())


def are_adjacent(chunks: list[Tensor]) -> bool:
    """Whether the chunks lie one after the other in one buffer."""
    ends = [chunk.storage_offset() + chunk.numel() for chunk in chunks]
    same = len({chunk.untyped_storage()._cdata for chunk in chunks}) == 1
    return same and all(
        end == chunk.storage_offset() for end, chunk in zip(ends, chunks[1:], strict=False)
    )


def scratch(like: Tensor, length: int | None = None) -> Tensor:
    """Room for `length` elements (as many as it has) of its dtype, where it lives. On meta tensors three times as fast
    as `like.new_empty`, which is Python there."""
    return torch.empty(
        like.numel() if length is None else length, dtype=like.dtype, device=like.device
    )


def put(chunk: Tensor, out: Tensor) -> None:
    """Copy `chunk` into `out`, unless it is `out` itself."""
    if chunk is not out:
        out.copy_(chunk)
