"""Boxes: what part of a tensor is where. Two boxes overlap in a box, and a flat range is a few boxes.

A rank's part of a tensor is a range of rows, of columns, or (a flat shard) a run of elements that begins and ends in
the middle of a row. The first two are boxes; the third is cut into boxes, at most 2d − 1 of them in d dimensions:

    elements 3 … 13 of (4, 4)      . . . 3      (0, 3) 1 × 1
                                   4 5 6 7      (1, 0) 2 × 4
                                   8 9 a b
                                   c d . .      (3, 0) 1 × 2

So one rule serves all: what is wanted minus what is there. Source: Wan et al. 2024, "ByteCheckpoint", which cuts
irregular shards into regular ones so that they can be saved and loaded without a message.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from torch import Tensor


class Box(NamedTuple):
    """`size` elements in each dimension, from `first` on. Of a tensor without dimensions, both are ()."""

    first: tuple[int, ...]
    size: tuple[int, ...]

    @classmethod
    def of(cls, shape: Sequence[int]) -> Box:
        """All of a tensor of this shape."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def numel(self) -> int:
        return math.prod(self.size)

    def within(self, other: Box) -> Box:
        """The same box, counted from where `other` begins."""
        return self.moved([-a for a in other.first])

    def moved(self, by: Sequence[int]) -> Box:
        return Box(tuple(a + b for a, b in zip(self.first, by, strict=True)), self.size)

    def view(self, x: Tensor) -> Tensor:
        """This part of `x`, a view."""
        for dim, (first, size) in enumerate(zip(self.first, self.size, strict=True)):
            x = x.narrow(dim, first, size)
        return x

    def __str__(self) -> str:
        return f"[{', '.join(f'{a}:{a + n}' for a, n in zip(self.first, self.size, strict=True))}]"


def overlap(a: Box, b: Box) -> Box | None:
    """What is in both; None if nothing is."""
    first = tuple(map(max, a.first, b.first))
    size = tuple(min(p + m, q + n) - f for p, m, q, n, f in zip(*a, *b, first, strict=True))
    return Box(first, size) if all(n > 0 for n in size) else None


def minus(a: Box, b: Box) -> Iterator[Box]:
    """What is in `a` and not in `b`, as boxes: slab by slab, at most two for each dimension."""
    common = overlap(a, b)
    if common is None:
        yield a
        return
    first, size = list(a.first), list(a.size)
    for dim, (begin, length) in enumerate(zip(*common, strict=True)):
        for low, high in ((first[dim], begin), (begin + length, first[dim] + size[dim])):
            if low < high:
                yield Box(
                    (*first[:dim], low, *first[dim + 1 :]),
                    (*size[:dim], high - low, *size[dim + 1 :]),
                )
        first[dim], size[dim] = begin, length


def missing(wanted: Box, there: Iterable[Box]) -> list[Box]:
    """What is wanted and not there."""
    rest = [wanted] if wanted.numel else []
    for box in there:
        rest = [left for one in rest for left in minus(one, box)]
    return rest


def runs(shape: Sequence[int], first: int, end: int) -> Iterator[Box]:
    """Elements `first` to `end` of a tensor of this shape, row by row, as boxes in the order of the elements."""
    if first >= end:
        return
    if len(shape) < 2:
        yield Box((first,), (end - first,)) if shape else Box((), ())
        return
    row = math.prod(shape[1:])
    low, high = -(-first // row), end // row  # whole rows
    if low > high:
        yield from _in_row(high, shape, first - high * row, end - high * row)
        return
    if first < low * row:
        yield from _in_row(low - 1, shape, first - (low - 1) * row, row)
    if low < high:
        yield Box((low, *(0 for _ in shape[1:])), (high - low, *shape[1:]))
    if high * row < end:
        yield from _in_row(high, shape, 0, end - high * row)


def _in_row(index: int, shape: Sequence[int], first: int, end: int) -> Iterator[Box]:
    for box in runs(shape[1:], first, end):
        yield Box((index, *box.first), (1, *box.size))
