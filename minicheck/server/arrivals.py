"""The exercises of lesson 06 in which a push is a step of its own: asynchronous, bounded, and with workers that leave.

The order of the updates is the answer's to say; what follows from it is replayed, see `replay`.
"""

from __future__ import annotations

import math

import torch

from minidist.comm.base import Comm

from ..exam import Case, Exam, Outcome, ask
from ..wrong import Wrong
from .oracle import as_they_come
from .replay import replayed
from .work import FORBIDDEN, Gradient, draw_gradient, draw_rate, timed

BETA, SIZE = 1e-8, 9
SLACK = 1.1


def paces(kind: str, k: int, n: int, steps: int, rng: torch.Generator) -> list[float]:
    """Seconds of each step of worker k of n."""
    even = (1e-3 * (1 + 0.3 * torch.rand(steps, generator=rng))).tolist()
    if kind == "slow":
        return [t * 5 if k == 0 else t for t in even]
    if kind == "chance":
        pauses = (torch.rand(steps, generator=rng) < 0.25).tolist()
        return [t * 7 if pause else t for t, pause in zip(even, pauses, strict=True)]
    return even


class Asynchronous(Exam):
    """given: the pace, each worker's steps, the bound."""

    name = "asynchronous"
    right = (
        "1 to 5 workers, even, slow and uneven: every push a step of its own, answered at once, staleness as it "
        "is, nobody waits; then real processes."
    )
    forbidden = FORBIDDEN
    cases = tuple(
        Case(len(steps) + 1, what, (kind, steps, math.inf))
        for what, kind, steps in (
            ("2 workers", "even", (4, 4)),
            ("3 workers, one slow", "slow", (3, 9, 9)),
            ("1 worker", "even", (5,)),
            ("5 workers", "chance", (5, 5, 5, 5, 5)),
            ("3 workers with 2, 8 and 5 steps", "even", (2, 8, 5)),
        )
    )
    processes = (
        Case(4, "3 workers in real processes", ("even", (4, 2, 5), math.inf)),
        Case(2, "1 worker in a real process", ("even", (3,), math.inf)),
    )

    def draw(self, case, rng):
        kind, steps, bound = case.given
        n, other = len(steps), lambda: torch.randn(SIZE, generator=rng, dtype=torch.float64)
        works = [draw_gradient(rng, SIZE, paces(kind, k, n, steps[k], rng)) for k in range(n)]
        asked = self.asked(list(steps), draw_rate(rng), bound)
        return [(other(), works[max(0, r - 1)], *asked) for r in range(n + 1)]

    def asked(self, steps: list[int], rate: float, bound: float) -> tuple:
        """The last arguments of the answer."""
        return steps, rate

    def world(self, n, args):
        return timed(n, BETA)

    def run(self, comm: Comm, yours, w, work, *asked):
        gradient, held = Gradient(*work), w.detach()
        log = yours(comm, w, gradient, *asked)
        return {
            "log": log if comm.rank == 0 else None,
            "w": held if comm.rank == 0 else None,
            "seen": gradient.seen,
        }

    def judge(self, case, args, outcome):
        _, steps, bound = case.given
        replayed(args, outcome.results, list(steps), bound, args[0][3])
        self._messages(list(steps), outcome)
        self._time(case, args, outcome)

    def _messages(self, steps: list[int], outcome: Outcome) -> None:
        for k, most in enumerate(steps):
            pushed = sum(b for src, dst, b in outcome.sent if (src, dst) == (k + 1, 0))
            pulled = sum(b for src, dst, b in outcome.sent if (src, dst) == (0, k + 1))
            for what, count, upto in (("pushes", pushed, most), ("pulls", pulled, most + 1)):
                if count < most * SIZE * 8 or count > upto * SIZE * 8 + 32 * (most + 1):
                    raise Wrong(
                        f"the weights are right, but rank {k + 1} {what} {count} bytes: {most} steps of "
                        f"{SIZE} numbers are {most * SIZE * 8}."
                    )

    def _time(self, case: Case, args: list[tuple], outcome: Outcome) -> None:
        if outcome.time is None:
            return
        _, steps, bound = case.given
        least = max(sum(seconds) for _, (_, _, seconds), *_ in args[1:])
        if outcome.time < 0.99 * least:  # a product has a whole length
            raise Wrong(
                f"the World's clock shows {1e3 * outcome.time:.3g} ms, and one worker alone computes "
                f"{1e3 * least:.3g} ms: call gradient(w) for every gradient."
            )
        world = self.world(case.n, args)
        world.run(
            lambda comm, some: as_they_come(
                comm,
                some[comm.rank][0],
                Gradient(*some[comm.rank][1]),
                list(steps),
                some[0][3],
                bound,
            ),
            args,
        )
        if outcome.time > SLACK * world.time:
            raise Wrong(
                f"the weights are right, but it takes {1e3 * outcome.time:.3g} ms on the World's clock, and "
                f"{1e3 * world.time:.3g} ms are enough. Does the server wait for one worker, while another "
                "has pushed? irecv(g, ANY) takes whoever is first."
            )


class Bounded(Asynchronous):
    name = "bounded"
    right = (
        "1 to 5 workers, bounds 0 to 4: nobody begins a step more than `bound` ahead, nobody waits without "
        "need; then real processes."
    )
    cases = tuple(
        Case(n + 1, f"{n} worker{'s' * (n > 1)}, bound {bound}", (kind, (steps,) * n, bound))
        for n, bound, kind, steps in (
            (2, 1, "slow", 6),
            (3, 0, "chance", 4),
            (3, 2, "slow", 6),
            (1, 1, "even", 4),
            (5, 1, "chance", 6),
            (4, 4, "chance", 9),
        )
    )
    processes = (
        Case(4, "3 workers in real processes, bound 1", ("even", (4, 4, 4), 1)),
        Case(3, "2 workers in real processes, bound 0", ("even", (3, 3), 0)),
    )

    def asked(self, steps, rate, bound):
        return steps[0], rate, bound


class Leavers(Asynchronous):
    name = "leavers"
    right = (
        "workers with 1 to 9 steps, bounds 0 to 2: who has done all his steps holds nobody up, everybody else "
        "counts; then real processes."
    )
    cases = tuple(
        Case(
            len(steps) + 1,
            f"steps {', '.join(map(str, steps))}, bound {bound}",
            (kind, steps, bound),
        )
        for steps, bound, kind in (
            ((6, 2), 1, "even"),
            ((4, 4, 4), 1, "slow"),
            ((2, 9), 0, "slow"),
            ((2, 8, 5), 0, "chance"),
            ((9, 3, 1, 6), 2, "chance"),
            ((7, 1, 7), 1, "slow"),
        )
    )
    processes = (
        Case(4, "3 workers in real processes", ("even", (6, 2, 3), 1)),
        Case(3, "2 workers in real processes", ("even", (1, 4), 0)),
    )

    def asked(self, steps, rate, bound):
        return steps, rate, bound


def asynchronous(yours) -> None:
    """`asynchronous(comm, w, gradient, steps, rate)`: rank 0 returns [(rank, staleness), …] of its updates."""
    ask(Asynchronous(), yours)


def bounded(yours) -> None:
    """`bounded(comm, w, gradient, steps, rate, bound)`: the same, with nobody more than `bound` ahead."""
    ask(Bounded(), yours)


def leavers(yours) -> None:
    """`leavers(comm, w, gradient, steps, rate, bound)`: the same, with `steps` of each worker."""
    ask(Leavers(), yours)
