"""The exercise of lesson 17 about a schedule: warm-up, then a cosine to a floor, a function of the step."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from minidist.comm.base import Comm

from ..exam import Case, Exam, ask
from ..plain import Other
from ..wrong import Wrong
from . import oracle


class LearningRate(Exam):
    name = "learning_rate"
    right = "every step of 6 schedules and beyond their ends, with and without warm-up, floors from 0 to 1."
    forbidden = oracle.FORBIDDEN
    cases = tuple(
        Case(1, what, given)
        for what, given in (
            ("20 steps, 5 of them warm-up", (20, 5, 0.1)),
            ("12 steps without warm-up", (12, 0, 0.2)),
            ("9 steps, floor 0", (9, 1, 0.0)),
            ("30 steps, floor 1", (30, 7, 1.0)),
            ("drawn at random", None),
            ("drawn at random", None),
        )
    )

    def draw(self, case, rng):
        one = lambda low, high: int(torch.randint(low, high, (), generator=rng))
        steps, warm, floor = case.given or (one(40, 60), one(3, 20), one(5, 40) / 100)
        order = torch.randperm(steps + 4, generator=rng).tolist()
        return [((steps, warm, (1 + float(torch.rand((), generator=rng))) * 1e-4, floor), order)]

    def run(self, comm: Comm, yours, given, order):
        found = {t: yours(t, *given) for t in order}
        return [
            x.item() if isinstance(x, Tensor) and x.numel() == 1 else x
            for _, x in sorted(found.items())
        ]

    def judge(self, case, args, outcome):
        (given, _), got = args[0], outcome.results[0]
        want = [oracle.rate(t, *given) for t in range(given[0] + 4)]
        for t, (x, right) in enumerate(zip(got, want, strict=True)):
            if isinstance(x, bool | Other) or not isinstance(x, int | float):
                raise Wrong(
                    f"step {t}: it returns {x.kind if isinstance(x, Other) else x}, and should return a rate."
                )
            if not near(x, right):
                x = oracle.within(x)
                looks = {
                    text: [slip(u, *given) for u in range(given[0] + 4)]
                    for text, slip in _fitting(given)
                }
                hint = next(
                    (text for text, line in looks.items() if all(map(near, got, line))), None
                )
                raise Wrong(
                    f"steps = {given[0]}, warm = {given[1]}, peak = {given[2]:.4g}, floor = {given[3]}: "
                    f"step {t} has {x:.6g}, and should have {right:.6g}. "
                    f"{hint or _where(t, x, right, *given[:2])}"
                )


def near(x, right: float) -> bool:
    """Equal but for rounding, as rates of 1e-4 are."""
    return isinstance(x, int | float) and math.isclose(
        oracle.within(x), right, rel_tol=1e-9, abs_tol=1e-13
    )


def _fitting(given) -> list:
    return [
        (text, slip)
        for text, slip in oracle.rate_slips().items()
        if given[1] or "first step" not in text
    ]


def _where(t: int, x: float, right: float, steps: int, warm: int) -> str:
    if math.isclose(x, right, rel_tol=1e-6):
        return "Nearly: is it calculated in float32, or rounded?"
    if t < warm:
        return "In the warm-up: peak · (t + 1)/warm."
    if t >= steps:
        return "After the end: floor · peak."
    return "After the warm-up: x = (t − warm)/(steps − warm), and floor + (1 − floor)·(1 + cos πx)/2 of the peak."


def learning_rate(yours) -> None:
    """`learning_rate(t, steps, warm, peak, floor)`: the rate of step t."""
    ask(LearningRate(), yours)
