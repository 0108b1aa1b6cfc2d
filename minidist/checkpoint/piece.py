"""A piece: what a rank has of one whole tensor, said by name. All that is saved is pieces, all that is loaded as well.

    saved on 2 ranks                     wanted on 3
    "w" (6, 4) from (0, 0): 3 rows       "w" (6, 4) from (0, 0): 2 rows      from rank 0's file
    "w" (6, 4) from (3, 0): 3 rows       "w" (6, 4) from (2, 0): 2 rows      a row of each file
                                         "w" (6, 4) from (4, 0): 2 rows      from rank 1's

Nothing else is known of the two grids: not their sizes, nor what was cut by which technique. Where a rank's tensor is
padded beyond the whole (a vocabulary, to a multiple of n), the padding is neither saved nor loaded.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from .boxes import Box


class Piece(NamedTuple):
    """`values`, which stand in the tensor `name` of shape `whole`, from `first` on. A view of what is trained."""

    name: str
    whole: tuple[int, ...]
    first: tuple[int, ...]
    values: Tensor

    @property
    def box(self) -> Box:
        return Box(self.first, tuple(self.values.shape))

    def sub(self, box: Box) -> Tensor:
        """The values of a box of the whole that lies in this piece."""
        return box.within(self.box).view(self.values)


def piece(
    name: str,
    values: Tensor,
    whole: tuple[int, ...] | None = None,
    first: tuple[int, ...] | None = None,
) -> Piece:
    """The piece `values` of a tensor of shape `whole`, from `first` on; without them, all of it. Padding is cut off.

    Raises ValueError for another number of dimensions, and for a meta tensor, which has no values.
    """
    whole = tuple(values.shape) if whole is None else tuple(whole)
    first = (0,) * len(whole) if first is None else tuple(first)
    if not len(whole) == len(first) == values.dim():
        raise ValueError(
            f"{name} has {len(whole)} dimensions, {whole}, and this piece {values.dim()}, "
            f"{tuple(values.shape)} from {first} on"
        )
    if values.is_meta:
        raise ValueError(
            f"{name} is on the device meta: there is nothing to save, and nowhere to load to"
        )
    inside = tuple(
        max(0, min(n, end - at)) for n, end, at in zip(values.shape, whole, first, strict=True)
    )
    return Piece(name, whole, first, Box((0,) * len(whole), inside).view(values.detach()))
