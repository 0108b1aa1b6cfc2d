"""The exercise of lesson 19 about time: a call that returns at once, and a future that is ready when the job is."""

from __future__ import annotations

import torch

from ...comm.base import Comm
from ..compare import same, who, whole
from ..exam import Case, Exam, ask
from ..wrong import Wrong
from .ddp import FORBIDDEN

POLLS = 60


class Later(Exam):
    name = "later"
    right = "2 to 4 ranks: back at once, ready when the sum is there, never before; errors arrive; 2 processes."
    forbidden = (*FORBIDDEN, "minidist.comm.torchdist")
    cases = tuple(Case(n, f"n = {n}, {what}", fails) for n in (2, 3, 4)
                  for what, fails in (("a job that ends", False), ("a job that raises", True)))  # fmt: skip
    processes = tuple(Case(2, f"2 real processes, {case.what[7:]}", case.given) for case in cases[:2])

    def draw(self, case, rng):
        return [(whole((5,), torch.float64, rng), case.given) for _ in range(case.n)]

    def run(self, comm: Comm, yours, x, fails):
        """A job of n−1 messages, while the program sends its own; they meet only where the lane is not a lane."""
        y, n, r, calls, told = x.clone(), comm.size, comm.rank, [], []
        own, token = torch.full((3,), float(r), dtype=torch.float64), torch.zeros(1)

        def job(lane):
            calls.append(lane is comm)
            around = x.clone()
            for _ in range(n - 1):
                around = lane.sendrecv(around, (r + 1) % n, torch.empty_like(around), (r - 1) % n, label="job")
                y.add_(around)
            if fails:
                raise ArithmeticError("the wire is cut")

        future = yours(comm, job, [y])
        if not isinstance(future, torch._C.Future):  # what `then` gives is one, too
            return {"kind": type(future).__name__}
        early = future.done()
        future.add_done_callback(lambda _: told.append(y.clone()))
        comm.sendrecv(own, (r + 1) % n, torch.empty_like(own), (r - 1) % n, label="program")
        for _ in range(POLLS):  # a message takes time, on every clock
            comm.sendrecv(token, (r + 1) % n, torch.empty_like(token), (r - 1) % n, label="program")
        done, error, value = future.done(), None, None
        if done:
            try:
                value = future.wait()
            except Exception as raised:
                error = str(raised)
        held = isinstance(value, list) and len(value) == 1 and value[0] is y
        return {"kind": None, "early": early, "done": done, "calls": calls, "y": y, "told": told, "error": error,
                "held": held}  # fmt: skip

    def judge(self, case, args, outcome):
        xs = [x for x, _ in args]
        for r, got in enumerate(outcome.results):
            if got["kind"] is not None:
                missing = " Is there a `return`?" if got["kind"] == "NoneType" else ""
                raise Wrong(f"rank {r}: a torch.futures.Future should be returned, not a {got['kind']}.{missing}")
            if len(got["calls"]) != 1:
                raise Wrong(f"rank {r}: job was called {len(got['calls'])} times, and should be called once.")
            if got["calls"][0]:
                raise Wrong(f"rank {r}: job got comm itself, on which the program sends, too: give it the lane.")
            if got["early"]:
                raise Wrong(f"rank {r}: the future was done when it was returned. Did the call wait for the job? Then "
                            "nothing overlaps. Or is it set too early? Then DDP goes on with half a sum.")  # fmt: skip
            if not got["done"]:
                why = "The job raised: who waits must hear of it." if case.given else "Who sets it?"
                raise Wrong(f"rank {r}: the job has ended long ago, and the future is not done. {why}")
            self._ended(case, r, got, xs)

    def _ended(self, case, r: int, got: dict, xs: list) -> None:
        if case.given and got["error"] is None:
            raise Wrong(f"rank {r}: the job raised, and who waits for the future does not hear of it.")
        if case.given and "the wire is cut" not in got["error"]:
            raise Wrong(f"rank {r}: the job raised \"the wire is cut\", and who waits hears: {got['error'][:80]}")
        if not case.given and got["error"] is not None:
            raise Wrong(f"rank {r}: who waits gets an error: {got['error'][:200]}")
        if len(got["told"]) != 1:
            raise Wrong(f"rank {r}: a callback of the future was called {len(got['told'])} times, and not once.")
        same(r, got["told"][0], sum(xs), "y when the future became done",
             lambda y: f"Set it when the job has returned. {who(y, xs, r) or ''}".rstrip())  # fmt: skip
        same(r, got["y"], sum(xs), "y")
        if not case.given and not got["held"]:
            raise Wrong(f"rank {r}: the value of the future is not `result`, the list that was given.")


def later(yours) -> None:
    """`later(comm, job, result)`: starts job(lane) beside the program; a Future of `result`."""
    ask(Later(), yours)
