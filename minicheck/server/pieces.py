"""The exercise of lesson 06 about the partition: which server holds which numbers."""

from __future__ import annotations

import torch

from minidist.comm.base import Comm

from ..exam import Case, Exam, ask
from ..plain import kind_of
from ..wrong import Wrong
from .oracle import owners
from .work import FORBIDDEN


class Pieces(Exam):
    name = "pieces"
    right = "Up to 30 parameters on 1 to 9 servers: every number once, in order, shares equal to one number."
    forbidden = FORBIDDEN
    # how many parameters, the largest, servers
    cases = tuple(
        Case(1, what, given)
        for what, given in {
            "4 parameters on 2 servers": (4, 6, 2),
            "7 parameters on 3 servers": (7, 9, 3),
            "30 parameters on 4 servers": (30, 50, 4),
            "one parameter on 3 servers": (1, 20, 3),
            "one server": (5, 9, 1),
            "9 servers": (6, 40, 9),
            "a matrix larger than all others": (5, -4, 4),
            "shares that end where a parameter does": (4, 1, 2),
            "more servers than numbers": (3, 0, 7),
        }.items()
    )

    def draw(self, case, rng):
        count, most, s = case.given
        low, high = (5, abs(most) + 5) if most else (1, 3)
        sizes = torch.randint(low, high, (count,), generator=rng).tolist()
        if most < 0:
            sizes[1] = 100 + sizes[0]
        return [(sizes, s)]

    def run(self, comm: Comm, yours, sizes, s):
        return {"pieces": yours(sizes, s), "sizes": sizes}

    def judge(self, case, args, outcome):
        (sizes, s), got = args[0], outcome.results[0]
        if got["sizes"] != sizes:
            raise Wrong("`sizes` was changed, and belongs to the caller.")
        shown = f"sizes {sizes}, {s} server{'s' * (s > 1)}: " if len(sizes) < 9 else ""
        found = _checked(got["pieces"], s, len(sizes))
        if found == owners(sizes, s):
            return
        _ranges(found, sizes, shown)
        _shares(found, sizes, s, shown)


def _checked(pieces, s: int, params: int) -> list[list[tuple[int, int, int]]]:
    if pieces is None:
        raise Wrong("the result is None. Is there a `return`?")
    if not isinstance(pieces, list | tuple):
        kind = kind_of(pieces)
        raise Wrong(
            f"the result is of type {kind}, and should be a list with a list for each server."
        )
    if len(pieces) != s:
        raise Wrong(f"the result has {len(pieces)} lists, and there are {s} servers.")
    for server, some in enumerate(pieces):
        if not isinstance(some, list | tuple):
            raise Wrong(f"server {server} should have a list of pieces, and has something else.")
        for piece in some:
            if not isinstance(piece, list | tuple) or [type(i) for i in piece] != [int] * 3:
                raise Wrong(
                    f"server {server}: a piece is (param, first, end), three integers. Yours is {piece}."
                )
            if not 0 <= piece[0] < params:
                raise Wrong(
                    f"server {server}: there are parameters 0 to {params - 1}, and no {piece[0]}."
                )
    return [[tuple(piece) for piece in some] for some in pieces]


def _ranges(found: list[list[tuple[int, int, int]]], sizes: list[int], shown: str) -> None:
    """Every number of every parameter once, in order."""
    for server, some in enumerate(found):
        for param, first, end in some:
            if not 0 <= first <= end <= sizes[param]:
                raise Wrong(
                    f"{shown}server {server} has elements {first} to {end} of parameter {param}, which has "
                    f"{sizes[param]}: first and end count within the parameter."
                )
            if first == end:
                raise Wrong(
                    f"{shown}server {server} has an empty piece of parameter {param}: leave it out."
                )
    flat = [(param, i) for some in found for param, first, end in some for i in range(first, end)]
    want = [(param, i) for param, size in enumerate(sizes) for i in range(size)]
    if sorted(flat) != want:
        lost, twice = sorted(set(want) - set(flat)), len(flat) - len(set(flat))
        what = (
            f"{twice} numbers are held twice"
            if twice
            else f"element {lost[0][1]} of parameter {lost[0][0]} is held by none"
        )
        raise Wrong(
            f"{shown}every number belongs to one server: {what}. Is `end` one behind the last?"
        )
    if flat != want:
        raise Wrong(
            f"{shown}every number is held once, but not in order: the parameters one after the other, server 0 "
            "holds the first ones."
        )


def _shares(found: list[list[tuple[int, int, int]]], sizes: list[int], s: int, shown: str) -> None:
    """Equal to one number, the first ones larger."""
    held = [sum(end - first for _, first, end in some) for some in found]
    if max(held) - min(held) > 1:
        hint = (
            "Cut through a parameter where the share ends."
            if all(
                first == 0 and end == sizes[param] for some in found for param, first, end in some
            )
            else "The first total % s servers hold one more."
        )
        raise Wrong(
            f"{shown}the servers hold {held} numbers: shares should be equal, to one number. {hint}"
        )
    if held != sorted(held, reverse=True):
        raise Wrong(
            f"{shown}the servers hold {held} numbers: the first total % s of them hold one more, as everywhere "
            "in minidist."
        )
    raise Wrong(f"{shown}a server's numbers of one parameter are one piece: yours are cut further.")


def pieces(yours) -> None:
    """`pieces(sizes, s)`: for each server a list of (param, first, end)."""
    ask(Pieces(), yours)
