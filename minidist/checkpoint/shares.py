"""Who writes what: each rank tells what it has, and what several have is written once, by the one with the least to do.

    rank 0 has   w  b  m[0:3]             writes   w  m[0:3]
    rank 1 has   w  b  m[3:6]             writes   b  m[3:6]

Replicas of data parallelism so share the work: with n of them each writes 1/n of the parameters, all at once. Largest
first, each to the holder with the least bytes so far. One all-gather of the descriptions, about 100 bytes a piece.
Invariant: together they write every element of every tensor that anybody named, else nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor

from .boxes import Box, missing
from .format import CODES, code
from .manifest import file_of, key
from .piece import Piece


class Row(NamedTuple):
    """A piece, told: dtype as in the safetensors format."""

    name: str
    dtype: str
    whole: tuple[int, ...]
    box: Box

    @classmethod
    def of(cls, piece: Piece) -> Row:
        """ValueError for a dtype that cannot be saved."""
        return cls(piece.name, code(piece.name, piece.values.dtype), piece.whole, piece.box)

    @property
    def nbytes(self) -> int:
        return self.box.numel * CODES[self.dtype].itemsize

    @property
    def key(self) -> str:
        return key(self.name, self.whole, self.box)


def distinct(pieces: Iterable[Piece]) -> dict[Row, Tensor]:
    """Each piece's values. ValueError where two pieces have a name and a place in common, but not their memory."""
    found: dict[Row, Tensor] = {}
    for one in pieces:
        row = Row.of(one)
        if found.setdefault(row, one.values).data_ptr() != one.values.data_ptr():
            raise ValueError(f"two tensors are named {row.key!r}: one of them would be lost")
    return found


def rows(told: Iterable) -> list[Row]:
    """What was told as JSON, which has lists alone."""
    return [
        Row(name, dtype, tuple(whole), Box(*map(tuple, box))) for name, dtype, whole, box in told
    ]


def owners(tables: list[list[Row]]) -> dict[Row, int]:
    """Which rank writes each piece; tables: of each rank. The same on all ranks.

    Raises ValueError where ranks differ in what a tensor is, and for elements that no rank has.
    """
    holders: dict[Row, list[int]] = {}
    for rank, table in enumerate(tables):
        for one in table:
            if one.box.numel or not math.prod(one.whole):
                holders.setdefault(one, []).append(rank)
    _check(holders)
    found, loads = {}, [0] * len(tables)
    for one in sorted(holders, key=lambda one: (-one.nbytes, one.name, one.box)):
        found[one] = min(holders[one], key=lambda rank: (loads[rank], rank))
        loads[found[one]] += one.nbytes
    return found


def _check(holders: dict[Row, list[int]]) -> None:
    first: dict[str, Row] = {}
    boxes: dict[str, list[Box]] = {}
    for one, ranks in holders.items():
        same = first.setdefault(one.name, one)
        boxes.setdefault(one.name, []).append(one.box)
        if (same.dtype, same.whole) != (one.dtype, one.whole):
            raise ValueError(
                f"{one.name} is {same.whole} {same.dtype} on rank {holders[same][0]}, "
                f"and {one.whole} {one.dtype} on rank {ranks[0]}"
            )
    keys = {one.key: one for one in holders}
    if len(keys) < len(holders):
        lost = next(one for one in holders if keys[one.key] is not one)
        raise ValueError(
            f"{lost.name} and {keys[lost.key].name} both have a piece called {lost.key!r}"
        )
    for name, there in boxes.items():
        holes = missing(Box.of(first[name].whole), there)
        if holes:
            raise ValueError(f"{name} is {first[name].whole}, and no rank has {holes[0]} of it")


def tensors(found: dict[Row, int]) -> dict[str, dict[str, Any]]:
    """All tensors, as a Manifest has them."""
    table: dict[str, dict[str, Any]] = {}
    for one, rank in sorted(found.items()):
        entry = table.setdefault(
            one.name, {"dtype": one.dtype, "shape": list(one.whole), "pieces": []}
        )
        entry["pieces"].append([file_of(rank), list(one.box.first), list(one.box.size)])
    return table
