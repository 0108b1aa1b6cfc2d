"""The exercise of lesson 13 about stages: which layers each gets. Any cut whose largest part is smallest is right.

Source: Narayanan et al. 2019, "PipeDream", section 3.1.
"""

from __future__ import annotations

import torch

from minidist.comm.base import Comm
from minidist.parallel.pipeline import partition

from ..exam import Case, Exam, ask
from ..plain import kind_of
from ..wrong import Wrong
from .words import FORBIDDEN


class Cut(Exam):
    name = "cut"
    right = "1 to 8 stages, up to 80 layers, the largest part as small as can be; too few layers refused."
    forbidden = FORBIDDEN
    step = 2.0
    cases = (
        *(
            Case(1, f"costs {costs}, S = {S}", (costs, S))
            for costs, S in (
                ([1, 1, 1, 4, 1, 1, 1], 3),
                ([1, 1, 1, 1, 1, 1, 1, 4], 4),
                ([5, 1, 1, 1, 1, 1], 3),
                ([3], 1),
                ([2, 2, 2], 3),
                ([1, 9, 1, 1], 3),
                ([0, 0, 5, 0], 2),
                ([4, 4, 1, 1, 4, 4], 3),
                ([1, 1, 3, 5, 1], 3),
                ([1, 1, 5, 1, 3, 3], 3),
                ([1, 1], 3),
            )
        ),
        *(Case(1, f"{L} layers, S = {S}", (L, S)) for L, S in ((12, 5), (12, 3), (30, 7), (80, 8))),
    )

    def draw(self, case, rng):
        costs, S = case.given
        if isinstance(costs, int):
            costs = [1 + int(c) for c in torch.randint(40, (costs,), generator=rng)]
        return [(list(costs), S)]

    def run(self, comm: Comm, yours, costs, S):
        try:
            return {"parts": yours(costs, S), "costs": costs}
        except ValueError:
            if len(costs) >= S:
                raise
            return {"refused": True}

    def judge(self, case, args, outcome):
        (costs, S), got = args[0], outcome.results[0]
        if len(costs) < S:
            if "refused" not in got:
                raise Wrong(
                    f"{len(costs)} layers do not make {S} stages of at least one each: raise a ValueError."
                )
            return
        if got["costs"] != costs:
            raise Wrong("the list of costs was changed, and belongs to the caller.")
        parts = got["parts"]
        self._parts(parts, len(costs), S)
        sums = [sum(costs[first:end]) for first, end in parts]
        best = max(sum(costs[first:end]) for first, end in partition(costs, S))
        if max(sums) > best:
            equal = [end - first for first, end in parts]
            hint = (
                " Does each part take layers as long as they fit, without a look at what is left?"
            )
            if max(equal) - min(equal) < 2:
                hint = " The parts have equally many layers; what counts is what they cost."
            raise Wrong(
                f"costs {costs}: the parts {parts} cost {sums}, the largest {max(sums)}; {best} is possible."
                f"{hint}"
            )

    def _parts(self, parts, L: int, S: int) -> None:
        if not isinstance(parts, list | tuple):
            kind = kind_of(parts)
            raise Wrong(
                f"it returns {'None. Is there a `return`?' if parts is None else f'a {kind}, not a list.'}"
            )
        good = [
            isinstance(p, list | tuple) and len(p) == 2 and all(type(i) is int for i in p)
            for p in parts
        ]
        if not all(good):
            raise Wrong(
                f"a part is a pair (first, end) of whole numbers, and here is {parts[good.index(False)]!r}."
            )
        if len(parts) != S:
            raise Wrong(f"{S} parts are asked for, one for each stage, and here are {len(parts)}.")
        at = 0
        for first, end in parts:
            if first != at:
                raise Wrong(
                    f"the part ({first}, {end}) should begin with layer {at}: parts are contiguous, begin with "
                    "layer 0, and `end` is the first layer that is not in it."
                )
            if end <= first:
                raise Wrong(
                    f"the part ({first}, {end}) is empty: every stage has at least one layer."
                )
            at = end
        if at != L:
            raise Wrong(
                f"the parts end with layer {at - 1}, and there are {L} layers, 0 to {L - 1}."
            )


def cut(yours) -> None:
    """`cut(costs, S)`: (first, end) of each stage's layers, the largest part as small as can be."""
    ask(Cut(), yours)
