"""Bytes, item by item: how every calculator of this package shows its result.

Bytes are integers. GB is 10⁹ and GiB is 2³⁰ bytes; a table shows both, so that nobody adds one to the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace

from minidist.study.tables import Table, table

KB = 10**3
MB = 10**6
GB = 10**9
TB = 10**12
KiB = 2**10
MiB = 2**20
GiB = 2**30
TiB = 2**40


def sized(nbytes: int, whole: int) -> str:
    """`nbytes` in GiB; in MiB where the `whole` that it is a part of has less than one GiB."""
    return f"{nbytes / GiB:.2f} GiB" if whole >= GiB else f"{nbytes / MiB:.4g} MiB"


def divided(total: int, by: int, what: str) -> int:
    """`total / by`, which must come out even: ValueError with both numbers if not."""
    if by < 1 or total % by:
        raise ValueError(
            f"{total} {what} do not split over {by} ranks: {total} is not a multiple of {by}"
        )
    return total // by


def listing(items: Mapping[str, int], title: str = "") -> Table:
    """Items with their bytes, in GB and in GiB, and their sum."""
    rows = [
        [name, b, b / GB, b / GiB] for name, b in [*items.items(), ("total", sum(items.values()))]
    ]
    return table(rows, ["", "bytes", "GB", "GiB"], title=title)


class Totals:
    """For a dataclass whose integer fields are bytes: their sum, and a table of them."""

    @property
    def bytes(self) -> dict[str, int]:
        """The fields, in order, with their names as one reads them."""
        return {f.name.replace("_", " "): getattr(self, f.name) for f in fields(self)}

    @property
    def total(self) -> int:
        return sum(self.bytes.values())

    def table(self) -> Table:
        return listing(self.bytes)

    def __str__(self) -> str:
        return self.table().text

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


@dataclass(frozen=True)
class Item:
    """One thing that is kept: bytes `ours` counts and bytes of the `paper`'s formula, and why they differ.

    part: what tensor-parallel ranks do with it: "split"; "scores", split and given up by selective recomputation;
    "tokens", split where the sequence is; "mask", never split and given up with the scores; "whole", neither.
    """

    name: str
    ours: int
    paper: int = 0
    why: str = ""
    part: str = "whole"

    def times(self, n: int) -> Item:
        return replace(self, ours=n * self.ours, paper=n * self.paper)

    def over(self, n: int) -> Item:
        """One rank's part; ValueError where `n` does not divide it."""
        return replace(
            self, ours=divided(self.ours, n, self.name), paper=divided(self.paper, n, self.name)
        )


class Items:
    """Items in order, as a table; `total` sums ours, `paper` the paper's, which is 0 where there is no formula."""

    def __init__(self, items: Iterable[Item], title: str = ""):
        self.items, self.title = tuple(items), title

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    @property
    def total(self) -> int:
        return sum(i.ours for i in self.items)

    @property
    def paper(self) -> int:
        return sum(i.paper for i in self.items)

    def table(self) -> Table:
        if not self.paper:
            return listing({i.name: i.ours for i in self.items}, self.title)
        rows = [
            [i.name, i.ours, i.paper, i.ours - i.paper, i.why * (i.ours != i.paper)]
            for i in self.items
        ]
        rows.append(["total", self.total, self.paper, self.total - self.paper, ""])
        return table(
            rows,
            ["kept for backward", "ours, bytes", "paper, bytes", "difference", "why"],
            title=self.title,
        )

    def __repr__(self) -> str:
        return self.table().text

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()
