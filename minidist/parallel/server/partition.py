"""Which server holds what: the parameters one after the other, cut evenly, also through the midst of one.

    parameters    w1 w1 w1 w1 w1 w1 w1 b1 w2 w2 w2 b2       a flat buffer of N bytes for each dtype
    servers       0        │ 1       │ 2        │ 3         N/s each, to one number; a server's parts are its pieces

A server's wire carries as many bytes as it holds, for every worker. Whole parameters would be out of balance: one
matrix of a small network, or the embedding of a large one, is more than a server's share. An optimizer that treats each
number by itself (SGD, Adam and nearly all of torch.optim) does the same to a piece as to the whole. One that looks at
rows or norms needs whole=True: whole parameters, balanced by bytes as well as they can be (see zero/layout.py).

Source: Li et al. 2014, section 4.3 (ranges of keys). Invariant: all ranks find the same partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...split import bounds, uneven
from ..zero.layout import best_fit


class Piece(NamedTuple):
    """Elements `first` … `end` − 1 of parameter number `param`, which lie from element `start` on in chunk `chunk`."""

    param: int
    first: int
    end: int
    chunk: int
    start: int


class _Kind(NamedTuple):
    """The parameters of one dtype, in the order of their buffer: their numbers, (first, end) there of each, and of each
    server's chunk."""

    params: list[int]
    places: list[tuple[int, int]]
    chunks: list[tuple[int, int]]


class Partition:
    """`params` over `servers`. Their values are not kept here. whole: do not cut.

    Raises ValueError for less than one server.
    """

    def __init__(self, params: Sequence[Tensor], servers: int, whole: bool = False):
        if servers < 1:
            raise ValueError(f"parameters are held by at least 1 server, not {servers}")
        self.params, self.servers = list(params), servers
        self._owners = best_fit([p.nbytes for p in self.params], [0] * servers) if whole else None
        self._kinds = [self._kind(dtype) for dtype in dict.fromkeys(p.dtype for p in self.params)]
        self.pieces = [self._pieces(server) for server in range(servers)]

    def _kind(self, dtype: torch.dtype) -> _Kind:
        numbers = [i for i, p in enumerate(self.params) if p.dtype == dtype]
        size = lambda i: self.params[i].numel()
        if self._owners is None:
            lengths = uneven(sum(map(size, numbers)), self.servers)
        else:
            owners = self._owners
            numbers.sort(key=lambda i: owners[i])
            lengths = [
                sum(size(i) for i in numbers if owners[i] == server)
                for server in range(self.servers)
            ]
        return _Kind(numbers, bounds([size(i) for i in numbers]), bounds(lengths))

    def _pieces(self, server: int) -> list[Piece]:
        found = []
        chunks = [kind for kind in self._kinds if len(range(*kind.chunks[server]))]
        for chunk, kind in enumerate(chunks):
            begin, stop = kind.chunks[server]
            for param, (first, end) in zip(kind.params, kind.places, strict=True):
                low, high = max(first, begin), min(end, stop)
                if low < high:
                    found.append(Piece(param, low - first, high - first, chunk, low - begin))
        return found

    @property
    def nbytes(self) -> list[int]:
        """Bytes that each server holds."""
        sizes = [p.element_size() for p in self.params]
        return [
            sum((piece.end - piece.first) * sizes[piece.param] for piece in pieces)
            for pieces in self.pieces
        ]

    def flatten(self, tensors: Sequence[Tensor | None]) -> list[Tensor]:
        """One flat tensor for each dtype, of tensors shaped as the parameters; None: zeros."""
        filled = [
            torch.zeros_like(p) if t is None else t.detach()
            for t, p in zip(tensors, self.params, strict=True)
        ]
        return [torch.cat([filled[i].reshape(-1) for i in kind.params]) for kind in self._kinds]

    def spread(self, flats: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
        """The way back, into tensors shaped as the parameters."""
        for kind, flat in zip(self._kinds, flats, strict=True):
            for i, (first, end) in zip(kind.params, kind.places, strict=True):
                tensors[i].detach().copy_(flat[first:end].view(tensors[i].shape))

    def by_server(self, flats: Sequence[Tensor]) -> list[list[Tensor]]:
        """For each flat tensor the servers' parts of it, as views; some may be empty."""
        return [
            [flat[first:end] for first, end in kind.chunks]
            for kind, flat in zip(self._kinds, flats, strict=True)
        ]

    def chunks(self, flats: Sequence[Tensor], server: int) -> list[Tensor]:
        """One server's parts: one for each dtype of which it has any."""
        parts = [chunks[server] for chunks in self.by_server(flats)]
        return [part for part in parts if part.numel()]
