"""The exercises of lesson 08 about a chain of layers: segments within a budget, and the plan that repeats the least.

Source: Chen et al. 2016, sections 3 and 4.
"""

from __future__ import annotations

import numpy as np
import torch

from minidist.comm.base import Comm

from ..exam import Case, Exam, ask
from ..plain import Other
from ..wrong import Wrong
from .oracle import FORBIDDEN, alive, fewest, least, peak_of


def attempt(fn, *args) -> tuple:
    """("returns", what it returns, as a list of plain numbers) or ("raises", in words)."""
    try:
        found = fn(*args)
    except ValueError as error:
        return "raises", f"ValueError: {error}"
    if not isinstance(found, list | tuple):
        return "returns", found
    one = lambda x: isinstance(x, np.generic) or (isinstance(x, torch.Tensor) and x.numel() == 1)
    return "returns", [x.item() if one(x) else x for x in found]


def listed(attempted: tuple, what: str, possible: bool, why: str) -> list | None:
    """The list that was returned; None if it is right that there is none. Wrong otherwise."""
    how, found = attempted
    if how == "raises":
        if possible:
            raise Wrong(f"it can be done, and here is a {found[:80]}")
        return None
    if not possible:
        raise Wrong(
            f"it cannot be done ({why}), and should be a ValueError; here is {shown(found)}."
        )
    if not isinstance(found, list):
        raise Wrong(f"it returns {shown(found)}, and should return {what}. Is there a `return`?")
    return found


def shown(found) -> str:
    text = found.kind if isinstance(found, Other) else str(found)
    return text if len(text) < 90 else f"{text[:90]}…"


class Segments(Exam):
    name = "segments"
    right = "1 to 900 layers: as few segments as the budget allows, the early ones longer; errors where none will do."
    forbidden = FORBIDDEN
    step = 2.0
    cases = tuple(
        Case(1, f"{layers} layers, a budget of {budget}", (layers, budget))
        for layers, budget in (
            (9, 9),
            (9, 5),
            (10, 4),
            (64, 11),
            (64, 15),
            (1, 1),
            (11, 4),
            (500, 40),
        )
    )
    cases += tuple(
        Case(1, f"layers drawn at random, and a budget {text}", off)
        for off, text in ((0, "of just enough"), (4, "of some more"), (-1, "one short"))
    )

    def draw(self, case, rng):
        if isinstance(case.given, tuple):
            return [case.given]
        layers = int(torch.randint(20, 900, (), generator=rng))
        enough = next(b for b in range(1, layers + 1) if fewest(layers, b))
        return [(layers, enough + case.given)]

    def run(self, comm: Comm, yours, layers, budget):
        return {"found": attempt(yours, layers, budget)}

    def judge(self, case, args, outcome):
        layers, budget = args[0]
        need = fewest(layers, budget)
        why = f"{budget} + {budget - 1} + … + 1 layers are fewer than {layers}"
        found = listed(outcome.results[0]["found"], "a list of lengths", need is not None, why)
        if found is None:
            return
        if any(type(n) is not int or n < 1 for n in found):
            raise Wrong(
                f"{shown(found)} is no list of lengths: a segment has 1 layer or more, in whole numbers."
            )
        if sum(found) != layers:
            ends = (
                " Are these the places where segments end? Lengths are asked for."
                if found[-1:] == [layers]
                else ""
            )
            raise Wrong(f"{shown(found)} are {sum(found)} layers, and there are {layers}.{ends}")
        if peak_of(found) > budget:
            worst = max(range(len(found)), key=lambda i: i + found[i])
            turned = " The other way round it would fit." if peak_of(found[::-1]) <= budget else ""
            raise Wrong(
                f"{shown(found)}: in segment {worst}, {worst} input{'s' * (worst != 1)} of segments before it "
                f"and {found[worst]} activations are alive, more than {budget}.{turned}"
            )
        if len(found) > need:
            raise Wrong(
                f"{shown(found)} are {len(found)} segments, and {need} {'is' if need == 1 else 'are'} enough. "
                "Segment j may have as many as budget − j layers."
            )


class BestPlan(Exam):
    name = "best_plan"
    right = "1 to 40 uneven layers, 12 budgets: nothing fits that repeats less, and errors where nothing fits at all."
    forbidden = FORBIDDEN
    step = 2.0
    cases = (
        Case(1, "4 layers by hand", ([3, 1, 2, 2], [4, 2, 6, 3], 12)),
        Case(1, "4 layers, all fit", ([3, 1, 2, 2], [4, 2, 6, 3], 15)),
        Case(
            1,
            "10 layers by hand",
            ([9, 2, 7, 1, 8, 3, 6, 4, 5, 9], [8, 9, 3, 7, 6, 2, 9, 5, 4, 9], 45),
        ),
        Case(1, "2 layers, too large", ([1, 1], [9, 2], 8)),
        *(
            Case(1, f"{n} layers drawn at random, {share:.0%} of what all need", (n, share))
            for n, share in (
                (1, 1.0),
                (5, 0.5),
                (8, 0.4),
                (12, 0.7),
                (14, 0.6),
                (14, 0.4),
                (40, 0.5),
                (6, 0.1),
            )
        ),
    )

    def draw(self, case, rng):
        if len(case.given) == 3:
            return [case.given]
        n, share = case.given
        drawn = lambda high: [1 + int(v) for v in torch.randint(high, (n,), generator=rng)]
        # few sums are alike: exchanging two layers does not lead to the best
        memories = drawn(40 if n > 20 else 900)
        costs = [m + c for m, c in zip(memories, drawn(6))]  # nearly alike: rules of thumb go wrong
        return [
            (costs, memories, max(int(share * sum(memories)), 1 if share < 0.2 else max(memories)))
        ]

    def run(self, comm: Comm, yours, costs, memories, budget):
        mine = [list(costs), list(memories)]
        return {"found": attempt(yours, *mine, budget), "given": mine}

    def judge(self, case, args, outcome):
        (costs, memories, budget), got = args[0], outcome.results[0]
        if got["given"] != [costs, memories]:
            raise Wrong("a list that was given was changed, and belongs to the caller.")
        want = least(costs, memories, budget)
        given = f"costs {shown(costs)}, memories {shown(memories)}, budget {budget}"
        kept = listed(
            got["found"],
            "a list of True and False",
            want is not None,
            f"a layer alone needs {max(memories)} bytes, and there are {budget}",
        )
        if kept is None:
            return
        if len(kept) != len(costs) or any(type(k) is not bool for k in kept):
            raise Wrong(
                f"{given}: a list of {len(costs)} words should come, True for a layer that is kept, False for "
                f"one that is repeated; here is {shown(kept)}."
            )
        seen = alive(memories, kept)
        if max(seen) > budget:
            worst = seen.index(max(seen))
            moment = (
                "" if kept[worst] else " (It is repeated, so its bytes are there for the moment.)"
            )
            raise Wrong(
                f"{given}: {shown(kept)} has {seen[worst]} bytes alive at the backward of layer {worst}: the "
                f"kept ones before it, and its own.{moment}"
            )
        again = sum(c for c, k in zip(costs, kept) if not k)
        if again > want:
            last = (
                " The last layer costs nothing to keep: its bytes are there anyway."
                if not kept[-1]
                else ""
            )
            raise Wrong(
                f"{given}: {shown(kept)} repeats {again}, and {want} is enough.{last} A rule of thumb will not "
                "do: compare all that differ in bytes held."
            )


def segments(yours) -> None:
    """`segments(L, budget)`: lengths of as few segments as will do within a budget of activations."""
    ask(Segments(), yours)


def best_plan(yours) -> None:
    """`best_plan(costs, memories, budget)`: which layers to keep, so that the others cost the least."""
    ask(BestPlan(), yours)
