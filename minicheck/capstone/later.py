"""The exercise of lesson 19 about time: a call that returns at once, and a future that is ready when the job is."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from minidist.comm.base import Comm
from minidist.comm.world.world import WorldComm

from ..compare import same, who
from ..exam import Case, Exam, ask
from ..wrong import Wrong
from .ddp import FORBIDDEN

POLLS = 60


class Torn(Exception):
    """No usual error: a job may raise any."""


class Later(Exam):
    name = "later"
    right = (
        "2 to 4 ranks, two jobs at a time: back at once, ready when the sum is there, never before; errors "
        "arrive; 2 processes."
    )
    forbidden = (*FORBIDDEN, "minidist.comm.torchdist")
    cases = tuple(
        Case(n, f"n = {n}, two calls, {what}", fails)
        for n in (2, 3, 4)
        for what, fails in (
            ("jobs that end", None),
            (f"the {('first', 'second')[n % 2]} job raises", n % 2),
        )
    )
    processes = tuple(Case(2, f"2 real processes{case.what[5:]}", case.given) for case in cases[:2])

    def draw(self, case, rng):
        words = f"wire {int(torch.randint(10**6, 10**7, (), generator=rng))} is cut"
        whole = lambda: torch.randint(-(10**6), 10**6, (5,), generator=rng).double()
        return [([whole(), whole()], case.given, words) for _ in range(case.n)]

    def run(self, comm: Comm, yours, xs, fails, words):
        """Two jobs of n−1 messages, while the program sends its own; they meet only where the lane is not a lane."""
        n = comm.size
        r = comm.rank
        token = torch.zeros(1)
        error = (OSError, Torn, ValueError)[n - 2](words)
        calls = [Call(comm, yours, x, i, error if i == fails else None) for i, x in enumerate(xs)]
        if any(call.found["kind"] is not None for call in calls):
            return [call.found for call in calls]
        for call in calls:  # in a World no time has passed; in processes a job may be done by now
            call.found["early"] |= isinstance(comm, WorldComm) and call.future.done()
        own = torch.full((3,), float(r), dtype=torch.float64)
        comm.sendrecv(own, (r + 1) % n, torch.empty_like(own), (r - 1) % n, label="program")
        for _ in range(POLLS):  # a message takes time, on every clock
            comm.sendrecv(token, (r + 1) % n, torch.empty_like(token), (r - 1) % n, label="program")
        until = time.monotonic() + 1.0  # in processes a lane has a thread, which may be late
        while (
            not isinstance(comm, WorldComm)
            and not all(c.found["told"] for c in calls)
            and time.monotonic() < until
        ):
            time.sleep(1e-3)
        return [call.ended() for call in calls]

    def judge(self, case, args, outcome):
        for r, found in enumerate(outcome.results):
            for i, got in enumerate(found):
                at, words = (
                    f"{r}, {('first', 'second')[i]} call",
                    args[0][2] if i == case.given else None,
                )
                self._begun(at, got, bool(words))
                self._ended(at, got, [xs[i] for xs, _, _ in args], r, words)

    def _begun(self, at: str, got: dict, fails: bool) -> None:
        if got["kind"] is not None:
            missing = " Is there a `return`?" if got["kind"] == "NoneType" else ""
            raise Wrong(
                f"rank {at}: a torch.futures.Future should be returned, not a {got['kind']}.{missing}"
            )
        if len(got["jobs"]) != 1:
            raise Wrong(
                f"rank {at}: job was called {len(got['jobs'])} times, and should be called once."
            )
        if got["jobs"][0]:
            raise Wrong(
                f"rank {at}: job got comm itself, on which the program sends, too: give it the lane."
            )
        if got["early"]:
            raise Wrong(
                f"rank {at}: the future was done before the program went on. Did a call wait for a job? Then "
                "nothing overlaps. Or is it set too early? Then DDP goes on with half a sum."
            )
        if not got["done"]:
            why = "The job raised: who waits must hear of it." if fails else "Who sets it?"
            raise Wrong(
                f"rank {at}: the job has ended long ago, and the future is not done. {why} Two calls are "
                "under way here: each has a future of its own."
            )

    def _ended(self, at: str, got: dict, xs: list[Tensor], r: int, words: str | None) -> None:
        """words: of the error that the job raised."""
        if words and got["error"] is None:
            raise Wrong(
                f"rank {at}: the job raised, and who waits for the future does not hear of it."
            )
        if words and words not in got["error"]:
            raise Wrong(
                f'rank {at}: the job raised "{words}", and who waits hears: {got["error"][:80]}'
            )
        if not words and got["error"] is not None:
            raise Wrong(f"rank {at}: who waits gets an error: {got['error'][:200]}")
        if len(got["told"]) != 1:
            raise Wrong(
                f"rank {at}: a callback of the future was called {len(got['told'])} times, and not once."
            )
        same(
            at,
            got["told"][0],
            sum(xs),
            "y when the future became done",
            lambda y: f"Set it when the job has returned. {who(y, xs, r) or ''}".rstrip(),
        )
        same(at, got["y"], sum(xs), "y")
        if not words and not got["held"]:
            raise Wrong(
                f"rank {at}: the value of the future, a {got['value']}, is not `result`, a {got['asked']}: it "
                "should be that itself, whatever it is, and that of this call."
            )


class Call:
    """One call of an answer. `found`: plain values, what became of it."""

    def __init__(self, comm: Comm, yours, x: Tensor, i: int, error: Exception | None):
        n = comm.size
        r = comm.rank
        self.y = x.clone()
        self.result = ([self.y], self.y, {"y": self.y}, "the sum is there")[(n + i) % 4]
        self.found = {"kind": None, "jobs": [], "told": [], "error": None}

        def job(lane):
            self.found["jobs"].append(lane is comm)
            around = x.clone()
            for _ in range(n - 1):
                around = lane.sendrecv(
                    around, (r + 1) % n, torch.empty_like(around), (r - 1) % n, label="job"
                )
                self.y.add_(around)
            if error is not None:
                raise error

        self.future = yours(comm, job, self.result)
        if not isinstance(self.future, torch._C.Future):  # what `then` gives is one, too
            self.found["kind"] = type(self.future).__name__
            return
        self.found["early"] = self.future.done()
        self.future.add_done_callback(lambda _: self.found["told"].append(self.y.clone()))

    def ended(self) -> dict:
        done, value = self.future.done(), None
        if done:
            try:
                value = self.future.wait()
            except Exception as raised:
                self.found["error"] = str(raised)
        names = {"asked": type(self.result).__name__, "value": type(value).__name__}
        return self.found | names | {"done": done, "held": value is self.result, "y": self.y}


def later(yours) -> None:
    """`later(comm, job, result)`: starts job(lane) beside the program; a Future of `result`."""
    ask(Later(), yours)
