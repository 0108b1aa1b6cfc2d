"""What one server holds: its chunks of the parameters, cut into pieces, and the optimizer that steps them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .partition import Partition, Piece

Factory = Callable[[list[nn.Parameter]], Optimizer]


class Shard:
    """Server number `server`'s part of `partition`, with the values that its parameters have now.

    optimizer(pieces): any of torch.optim. A whole parameter's piece has its shape, others are flat.
    buffers: a flat tensor for each dtype; they always hold the newest values.  version: number of steps taken.
    """

    def __init__(self, partition: Partition, server: int, optimizer: Factory):
        self._places, self._shapes = partition.pieces[server], [p.shape for p in partition.params]
        self.buffers = [
            chunk.clone() for chunk in partition.chunks(partition.flatten(partition.params), server)
        ]
        self.pieces = [nn.Parameter(view) for view in self.views(self.buffers)]
        self.optimizer = optimizer(self.pieces) if self.pieces else None
        self.version = 0

    def _view(self, flats: Sequence[Tensor], piece: Piece) -> Tensor:
        size, shape = piece.end - piece.first, self._shapes[piece.param]
        part = flats[piece.chunk][piece.start : piece.start + size]
        return part.view(shape) if size == shape.numel() else part

    def views(self, flats: Sequence[Tensor]) -> list[Tensor]:
        """The pieces of tensors that lie as the buffers do."""
        return [self._view(flats, piece) for piece in self._places]

    def room(self) -> list[Tensor]:
        """Buffers to receive gradients in."""
        return [torch.empty_like(buffer) for buffer in self.buffers]

    def step(self, gradients: Sequence[Tensor], there: Sequence[float]) -> None:
        """One step of the optimizer. gradients: as the buffers.  there: 0 for a piece that has none."""
        for piece, gradient, has in zip(self.pieces, self.views(gradients), there, strict=True):
            piece.grad = gradient if has else None
        if self.optimizer is not None:
            self.optimizer.step()
        for piece, view in zip(self.pieces, self.views(self.buffers), strict=True):
            piece.grad = None
            # an optimizer may move them to a buffer of its own
            if piece.data_ptr() != view.data_ptr():
                view.copy_(piece.detach())
        self.version += 1
