"""The exercise of lesson 06 about the synchronous server: several of them, in step, both ways at once."""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.comm.base import Comm

from ..compare import alike
from ..data_parallel.averages import near
from ..exam import Case, Exam, Outcome, ask
from ..wrong import Wrong
from .oracle import in_step
from .work import FORBIDDEN, Gradient, draw_gradient, draw_rate, timed

BETA = 1e-6  # large: the wires are what takes time, and not a split that an answer begins with
SLACK = 1.08
BATCH = (
    "Put all sends and receives of a server's step into one comm.batch, and those to and from all servers on a "
    "worker, too: a wire carries both ways at once."
)


def trajectory(args: list[tuple], slip: str = "") -> list[Tensor]:
    """The weights before each step and in the end; slip: with one mistake."""
    servers, w, _, steps, rate = args[0]
    works = [Gradient(*a[2]) for a in args[servers:]]
    found = [w]
    for t in range(steps):
        old = found[0] if slip == "first" else found[-1]
        grads = [work.of(old, t) for work in works]
        grads = {"one": grads[:1], "last": grads[-1:]}.get(slip, grads)
        by = {"sum": 1, "ranks": len(args)}.get(slip, len(grads))
        found.append(
            found[-1]
            - (-rate if slip == "sign" else 1 if slip == "rate" else rate) * sum(grads) / by
        )
    return found


SLIPS = {
    "sum": "It is the sum of the gradients: divide by the number of workers.",
    "ranks": "The mean is over the workers: servers are ranks, too, and have no gradient.",
    "one": "Only the first worker's gradients are in it.",
    "last": "Only the last worker's gradients are in it.",
    "sign": "It goes uphill: w − rate·g.",
    "rate": "The rate is missing.",
}


class Synchronous(Exam):
    name = "synchronous"
    right = (
        "1 to 4 workers, 1 to 4 servers: the serial program's weights in every step, bytes shared out, as fast as "
        "the wires allow; then real processes."
    )
    forbidden = FORBIDDEN
    # workers, servers, numbers, steps
    cases = tuple(
        Case(n + s, f"{n} worker{'s' * (n > 1)}, {s} server{'s' * (s > 1)}", (n, s, size, steps))
        for n, s, size, steps in (
            (2, 1, 3000, 2),
            (1, 1, 2000, 2),
            (3, 1, 6000, 3),
            (4, 2, 6000, 3),
            (3, 3, 5000, 2),
            (4, 4, 8000, 3),
            (2, 3, 3100, 2),
        )
    )
    processes = (
        Case(3, "3 real processes, 1 server", (2, 1, 12, 3)),
        Case(4, "4 real processes, 2 servers", (2, 2, 13, 2)),
    )

    def draw(self, case, rng):
        n, s, size, steps = case.given
        rate, first = draw_rate(rng), torch.randn(size, generator=rng, dtype=torch.float64)
        other = lambda: torch.randn(size, generator=rng, dtype=torch.float64)
        return [
            (s, first if r < s else other(), draw_gradient(rng, size, [1e-5] * steps), steps, rate)
            for r in range(n + s)
        ]

    def world(self, n, args):
        return timed(n, BETA)

    def run(self, comm: Comm, yours, servers, w, work, steps, rate):
        gradient = Gradient(*work)
        result = yours(comm, servers, w, gradient, steps, rate)
        return {"part": result if comm.rank < servers else None, "seen": gradient.seen}

    def judge(self, case, args, outcome):
        n, s, _, steps = case.given
        states = trajectory(args)
        for r in range(s, n + s):
            self._called(r, outcome.results[r]["seen"], states, args, steps)
        for r in range(s):
            if outcome.results[r]["seen"]:
                raise Wrong(f"rank {r} is a server, and calls gradient(w): workers do.")
            want = [w.tensor_split(s)[r] for w in states]
            got = outcome.results[r]["part"]
            if isinstance(got, Tensor) and got.shape == states[0].shape and s > 1:
                raise Wrong(
                    f"server {r} returns {len(got)} numbers: its part of the weights has {len(want[0])}."
                )
            alike(r, got, want[-1], "the server's part")
            if not near(got, want[-1]):
                raise Wrong(
                    f"server {r}: its part is wrong after {steps} steps. {self._says(got, args, r, want)}"
                )
        self._bytes(case, args, outcome)
        self._time(case, args, outcome)

    def _says(self, got: Tensor, args: list[tuple], server: int, want: list[Tensor]) -> str:
        if near(got, want[-2]):
            return "It is one step behind: the last pushes are missing."
        if near(got, want[0]):
            return "It is as before: is it the server's own tensor that is stepped?"
        s = args[0][0]
        part = lambda slip: trajectory(args, slip)[-1].tensor_split(s)[server]
        return next(
            (text for slip, text in SLIPS.items() if near(got, part(slip))),
            "Does every gradient meet its own part, and is it added up anew in every step?",
        )

    def _called(
        self, rank: int, seen: list, states: list[Tensor], args: list[tuple], steps: int
    ) -> None:
        if len(seen) != steps:
            raise Wrong(
                f"rank {rank}: gradient(w) is called {len(seen)} times, and should be once in each of {steps} "
                "steps."
            )
        for t, (got, want) in enumerate(zip(seen, states, strict=False)):
            alike(rank, got, want, f"the w that gradient is called with in step {t}")
            if near(got, want):
                continue
            text = (
                "Some parts are right: is every server's part pulled, into its own place?"
                if (got - want).abs().lt(1e-9).any()
                else "Do servers send the weights as they are after the last step?"
            )
            text = next(
                (said for slip, said in SLIPS.items() if near(got, trajectory(args, slip)[t])), text
            )
            if near(got, args[rank][1]):
                text = "They are this rank's own: a step begins with a pull."
            elif t and near(got, states[t - 1]):
                text = "They are those of the step before: a server answers after its step."
            raise Wrong(
                f"rank {rank}: in step {t} gradient(w) is called with wrong weights. {text}"
            )

    def _bytes(self, case: Case, args: list[tuple], outcome: Outcome) -> None:
        n, s, _, steps = case.given
        parts = [part.numel() * 8 for part in args[0][1].tensor_split(s)]
        for r, part in enumerate(parts):
            into = sum(nbytes for _, dst, nbytes in outcome.sent if dst == r)
            for way, count in (("sends", outcome.nbytes(r)), ("receives", into)):
                if count < n * steps * part:
                    raise Wrong(
                        f"the weights are right, but server {r} {way} {count} bytes, and {n} workers and "
                        f"{steps} steps are {n * steps * part}: it answers and hears every worker itself."
                    )
                if count > n * (steps + 1) * part + 64 * n * (steps + 1):
                    raise Wrong(
                        f"the weights are right, but server {r} {way} {count} bytes: {steps} steps of its part "
                        f"with {n} workers are {n * steps * part}. Is there what others own?"
                    )

    def _time(self, case: Case, args: list[tuple], outcome: Outcome) -> None:
        if outcome.time is None:
            return
        world = self.world(case.n, args)
        world.run(lambda comm, some: self.run(comm, in_step, *some[comm.rank]), args)
        if outcome.time < 0.5 * world.time:
            raise Wrong(
                f"the World's clock shows {1e3 * outcome.time:.3g} ms, and it takes {1e3 * world.time:.3g} ms "
                "at least: is the clock set?"
            )
        if outcome.time > SLACK * world.time:
            raise Wrong(
                f"the weights are right, but it takes {1e3 * outcome.time:.3g} ms on the World's clock, and "
                f"{1e3 * world.time:.3g} ms are enough. {BATCH}"
            )


def synchronous(yours) -> None:
    """`synchronous(comm, servers, w, gradient, steps, rate)`: a server returns its part of the weights."""
    ask(Synchronous(), yours)
