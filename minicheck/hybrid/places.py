"""The exercise of lesson 15 about places: the groups of every axis of a grid."""

from __future__ import annotations

import torch

from minidist.comm.base import Comm

from ..exam import Case, Exam, ask
from ..plain import shown
from ..wrong import Wrong
from . import oracle

FORBIDDEN = ("minidist.comm.mesh", *oracle.FORBIDDEN)
GRIDS = (
    {"pp": 2, "dp": 3, "tp": 4},
    {"pp": 2, "dp": 2, "tp": 2},
    {"dp": 3, "tp": 2, "pp": 4},
    {"tp": 4, "pp": 1, "dp": 2},
    {"pp": 1, "dp": 1, "tp": 1},
    {"dp": 6},
    {"pp": 3, "dp": 2, "cp": 2, "tp": 2},
    {"tp": 2, "dp": 5},
    {"y": 2, "ep": 3, "rows": 1, "tensor": 2, "x": 2},
)


class Groups(Exam):
    name = "groups"
    right = "Grids of 1 to 5 axes in several orders, with any names, axes of one rank: every group of every axis."
    forbidden = FORBIDDEN
    cases = tuple(
        Case(1, " × ".join(f"{a} {n}" for a, n in sizes.items()), sizes) for sizes in GRIDS
    )
    cases += (Case(1, "sizes that are drawn"),)

    def draw(self, case, rng):
        if case.given:
            return [(dict(case.given),)]
        sizes = torch.randperm(4, generator=rng)[:3].tolist()
        axes = [("dp", "pp", "tp")[i] for i in torch.randperm(3, generator=rng).tolist()]
        return [({axis: 2 + size for axis, size in zip(axes, sizes, strict=True)},)]

    def run(self, comm: Comm, yours, sizes):
        given = dict(sizes)
        found = yours(sizes)
        return found, list(sizes.items()) == list(given.items())

    def judge(self, case, args, outcome):
        (sizes,), (got, untouched) = args[0], outcome.results[0]
        want = oracle.lines(sizes)
        if not untouched:
            raise Wrong("`sizes` was changed, and belongs to the caller.")
        if not isinstance(got, dict):
            raise Wrong(
                f"it returns {shown(got)}, and should return a dict: for each axis its groups."
            )
        if set(got) != set(want):
            raise Wrong(
                f"the axes are {', '.join(map(str, got))}, and should be {', '.join(want)}."
            )
        for axis, groups in want.items():
            self._axis(axis, got[axis], groups, sizes)

    def _axis(self, axis: str, got, want: list[list[int]], sizes: dict[str, int]) -> None:
        try:
            found = [[r if type(r) is int else None for r in group] for group in got]
        except TypeError:
            found = None
        if found is None or any(r is None for group in found for r in group):
            raise Wrong(f"{axis}: groups are lists of ranks, lists of integers.")
        if sorted(found) == want:
            return
        n, everyone = sum(map(len, want)), [r for group in found for r in group]
        if sorted(map(sorted, found)) == want:
            raise Wrong(
                f"{axis}: the right ranks, in another order: walk along the axis, so that a group's first rank "
                f"is at 0: {want[0]}."
            )
        hint = self._looks(axis, sorted(map(sorted, found)), sizes)
        if not hint and sorted(everyone) != list(range(n)):
            missing = sorted(set(range(n)) - set(everyone))
            hint = (
                f"Rank {missing[0]} is in none."
                if missing
                else "Some rank is there twice, or does not exist."
            )
        raise Wrong(
            f"{axis}: the groups are {_short(found)}, and should be {_short(want)}. {hint}".rstrip()
        )

    def _looks(self, axis: str, found: list[list[int]], sizes: dict[str, int]) -> str:
        inside_out = oracle.lines(dict(reversed(sizes.items())))
        blocks = torch.arange(sum(map(len, found))).split(sizes[axis])
        fixed = oracle.lines({k: sizes[k] for k in ("pp", "dp", "cp", "tp") if k in sizes} | sizes)
        others = [other for other in sizes if other != axis and found == oracle.lines(sizes)[other]]
        planes = sorted(
            sorted(r for group in oracle.lines(sizes)[o] for r in group if group[0] in line)
            for o in sizes
            if o != axis
            for line in oracle.lines(sizes)[axis]
        )
        if found == inside_out[axis]:
            return "That is the first axis innermost: the last one is, its neighbours have neighbouring numbers."
        if others:
            return f"Those are the groups of {others[0]}."
        if found == [b.tolist() for b in blocks]:
            return "Those are neighbours: only on the innermost axis are they a group. How far apart are partners here?"
        if found == fixed[axis]:
            return "That is the order pp, dp, tp: the order of `sizes` says which axis is outside."
        if any(len(group) != sizes[axis] for group in found) or found == planes:
            return f"A group of {axis} has {sizes[axis]} ranks: all other coordinates are fixed."
        return ""


def _short(groups: list[list[int]]) -> str:
    return f"{', '.join(map(str, groups[:3]))}{', …' * (len(groups) > 3)}"


def groups(yours) -> None:
    """`groups(sizes)`: {axis: its groups, lists of ranks}; sizes: {axis: ranks along it}, from the outside in."""
    ask(Groups(), yours)
