"""The exercise of lesson 10 about owners: whole parameters, spread over ranks by bytes.

Looked at: the fullest rank, against largest first, each to the emptiest (Graham 1969: at most 4/3 of the best).
"""

from __future__ import annotations

import torch

from minidist.comm.base import Comm

from ..exam import Case, Exam, ask
from ..plain import kind_of
from ..wrong import Wrong
from . import oracle
from .work import FORBIDDEN


class Owners(Exam):
    name = "owners"
    right = "1 to 8 ranks, up to 60 parameters drawn at random: an owner for each, the fullest rank as full as need be."
    forbidden = FORBIDDEN
    cases = tuple(
        Case(1, what, given)
        for what, given in {
            "6 parameters, 3 ranks": ([8, 7, 6, 5, 4, 3], 3),
            "the largest comes last": ([1, 1, 1, 1, 1, 5], 2),
            "12 parameters, 4 ranks": (12, 4),
            "60 parameters, 8 ranks": (60, 8),
            "2 parameters, 4 ranks": (2, 4),
            "30 parameters, 1 rank": (30, 1),
            "8 equal ones, 3 ranks": ([4] * 8, 3),
            "no parameter": ([], 2),
            "a few large among small ones": ([100, 1, 1, 1, 100, 1, 1, 1, 100, 1, 1, 1], 3),
            "one of 0 bytes": ([0, 5, 3, 3], 2),
            "25 parameters, 5 ranks": (25, 5),
        }.items()
    )

    def draw(self, case, rng):
        sizes, n = case.given
        if isinstance(sizes, int):
            sizes = (8 * torch.randint(1, 1000, (sizes,), generator=rng) ** 2).tolist()
        return [(sizes, n, int(torch.randint(1, 4, (), generator=rng)))]

    def run(self, comm: Comm, yours, sizes, n, others):
        mine = list(sizes)
        owner = yours(mine, n)
        for k in range(others):  # of another model
            yours([*sizes, 8 * k], n)
        return {"owner": owner, "again": yours(list(sizes), n), "sizes": mine}

    def judge(self, case, args, outcome):
        (sizes, n, _), got = args[0], outcome.results[0]
        if got["sizes"] != sizes:
            raise Wrong("`nbytes` was changed, and belongs to the caller: sort a copy.")
        owner = got["owner"]
        if owner is None:
            raise Wrong("the result is None. Is there a `return`?")
        if not isinstance(owner, list | tuple):
            kind = kind_of(owner)
            raise Wrong(
                f"the result is of type {kind}, and should be a list: the rank that owns each parameter."
            )
        self._ranks(list(owner), sizes, n)
        if list(owner) != list(got["again"]):
            raise Wrong(
                "asked again later, it gives another answer. All ranks call it, and must find the same owners."
            )
        self._full(list(owner), sizes, n)

    def _ranks(self, owner: list, sizes: list[int], n: int) -> None:
        if any(isinstance(o, list | tuple) for o in owner):
            raise Wrong(
                "the result has lists in it, and should have one rank for each parameter, in their order."
            )
        if len(owner) != len(sizes):
            raise Wrong(
                f"the result has length {len(owner)}, for {len(sizes)} parameters: a rank for each of them."
            )
        strange = [o for o in owner if type(o) is not int or not 0 <= o < n]
        if strange:
            raise Wrong(f"{strange[0]} is no rank: with {n} ranks they are 0 to {n - 1}.")

    def _full(self, owner: list[int], sizes: list[int], n: int) -> None:
        loads = [sum(b for b, o in zip(sizes, owner, strict=True) if o == r) for r in range(n)]
        best = oracle.fullest(sizes, n)
        if max(loads) <= best:
            return
        shown = f"{sizes} bytes on {n} ranks: " if len(sizes) <= 12 else ""
        said = f"{shown}the fullest rank owns {max(loads):,} bytes, and {best:,} are possible by the rule."
        counts = [owner.count(r) for r in range(n)]
        for text, looks in {
            "Each goes to the rank whose turn it is: look at the bytes.": [
                i % n for i in range(len(sizes))
            ],
            "Small ones go first, and a large one at the end finds no room: begin with the largest.": oracle.greedy(
                sizes, n, sorted(range(len(sizes)), key=lambda i: sizes[i])
            ),
            "They go in the order of the model: begin with the largest, which are hardest to place.": oracle.greedy(
                sizes, n, range(len(sizes))
            ),
        }.items():
            if owner == looks:
                raise Wrong(f"{said} {text}")
        if len(set(owner)) == 1 and n > 1:
            raise Wrong(f"{said} One rank owns all: is its load counted?")
        if max(counts) - min(counts) <= 1:
            raise Wrong(
                f"{said} Every rank owns as many parameters as the others: balance their bytes."
            )
        raise Wrong(f"{said} Largest first, each to the rank that has the fewest bytes by then.")


def owners(yours) -> None:
    """`owners(nbytes, n)`: the rank that owns each parameter, balanced by bytes."""
    ask(Owners(), yours)
