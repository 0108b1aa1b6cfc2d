"""The exercise of lesson 18 about time: how often to save, and what failures then cost."""

from __future__ import annotations

import torch

from minidist.comm.base import Comm

from ..exam import Case, Exam, ask
from ..plain import shown
from ..wrong import Wrong
from . import oracle

ORACLE = "minicheck.survive.oracle"
FORBIDDEN = ("minidist.train", "minidist.collectives", "minidist.parallel", ORACLE)


class SaveEvery(Exam):
    name = "save_every"
    right = "20 clusters drawn at random: seconds between saves, and the share of the time that is lost."
    forbidden = FORBIDDEN
    cases = tuple(Case(1, f"cluster {i + 1} of 20") for i in range(20))

    def draw(self, case, rng):
        draw = lambda low, high: (
            float(torch.rand((), generator=rng, dtype=torch.float64)) * (high - low) + low
        )
        return [(draw(1, 300), draw(10, 1200), draw(5e3, 1e5), int(draw(2, 4000)))]

    def run(self, comm: Comm, yours, *given):
        return yours(*given)

    def judge(self, case, args, outcome):
        got = outcome.results[0]
        if not isinstance(got, tuple | list) or len(got) != 2:
            raise Wrong(
                "two numbers are asked for, (seconds between saves, share of the time lost)."
            )
        for name, mine, want in zip(
            ("seconds", "lost"), got, oracle.interval(*args[0]), strict=True
        ):
            if isinstance(mine, bool) or not isinstance(mine, int | float) or not abs(mine) < 1e300:
                raise Wrong(f"{name} should be a number, an int or float, and is {shown(mine)}.")
            if not _close(mine, want):
                slip = next(
                    (text for text, value in _slips(name, *args[0]).items() if _close(mine, value)),
                    "",
                )
                slip = slip or "Check the units: all in seconds."
                raise Wrong(f"{name} is {mine:.6g}, and should be {want:.6g}. {slip}")


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-9 * abs(b)


def _slips(name: str, cost: float, restart: float, hours: float, devices: int) -> dict[str, float]:
    between = hours * 3600 / devices
    every, lost = oracle.interval(cost, restart, hours, devices)
    if name == "seconds":
        return {
            "That is for one device: with n of them something fails n times as often.": every
            * devices**0.5,
            "Hours are 3600 seconds.": every / 60,
            "The 2 under the root is missing.": every / 2**0.5,
            "The root is missing.": every**2,
            "More devices fail more often, not less.": every * devices,
            "The time to restart does not depend on how often one saves.": (
                2 * (cost + restart) * between
            )
            ** 0.5,
            "That is the time between failures: then a whole interval is lost each time.": between,
        }
    return {
        "A failure loses half an interval on average, not all of it.": lost + every / 2 / between,
        "The restart is missing.": lost - restart / between,
        "The saves themselves take time, too: cost in every interval.": lost - cost / every,
        "What is lost by a failure is missing: half an interval.": lost - every / 2 / between,
        "A share of the time is asked for, not percent.": 100 * lost,
        "Those are the seconds of one failure: it comes every hours · 3600 / devices seconds.": cost
        / every
        + every / 2
        + restart,
    }


def save_every(yours) -> None:
    """`save_every(cost, restart, hours, devices)`: (seconds between saves, share of the time lost)."""
    ask(SaveEvery(), yours)
