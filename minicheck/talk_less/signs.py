"""The exercise of lesson 16 with a bug: signs, scaled, with error feedback; what must each rank keep?

Looked at: averages and errors over several steps, bytes.
"""

from __future__ import annotations

import torch

from minidist.comm.base import Comm

from ..compare import alike, unchanged
from ..data_parallel.averages import near
from ..exam import Case, Exam, ask
from ..wrong import Wrong
from . import oracle
from .sparse import FORBIDDEN

SLIPS = {
    "average": "The error is p minus the *average*: a rank keeps what *it* has not said, p minus its own c. What the "
    "others said is no error of this rank.",
    "sign": "The error has the wrong sign: what is missing is p − c.",
    "none": "Nothing is kept: write the error into `error`, in place.",
    "not added": "The error of the step before is not in it: p = g + error.",
    "one scale": "All ranks use one scale: each has its own, the mean of its own |p|.",
    "largest": "The scale is the mean of |p|, not the largest.",
    "no scale": "The scale is missing: c = mean|p| · sign(p).",
    "zero: 0": "sign(0) is 1: a bit has two values. torch.sign has three.",
    "zero: −1": "sign(0) is 1, not −1: p ≥ 0.",
    "whole": "The error is all of p: subtract what was sent, c.",
    "of g": "The error is g − c: what the last one left is lost. It is p − c.",
    "sum": "It is the sum of all c: divide by n.",
}


class SignAverage(Exam):
    name = "sign_average"
    right = "n = 1…4, 1 to 5 steps: averages, each rank's own error, a byte a sign; then 3 real processes."
    forbidden = FORBIDDEN
    cases = tuple(
        Case(n, f"n = {n}, {steps} step{'s' * (steps > 1)}", (steps, size))
        for n, steps, size in ((1, 3, 10), (3, 1, 12), (2, 3, 9), (3, 5, 40), (4, 4, 100))
    )
    processes = (Case(3, "3 real processes, 3 steps", (3, 12)),)

    def draw(self, case, rng):
        """Rank r's first gradient is 0 at place r."""
        steps, size = case.given
        grads = torch.randn(case.n, steps, size, generator=rng, dtype=torch.float64)
        grads[range(case.n), 0, range(case.n)] = 0
        return [([g.clone() for g in of * (r + 1)],) for r, of in enumerate(grads)]

    def run(self, comm: Comm, yours, grads):
        error, steps = torch.zeros_like(grads[0]), []
        mine_error = error.detach()  # the same memory: `error.data = …` does not write into it
        for g in grads:
            mine = g.clone()
            steps.append({"mean": yours(comm, mine, mine_error), "g": mine, "error": error.clone()})
        return steps

    def judge(self, case, args, outcome):
        grads = [[a[0][t] for a in args] for t in range(case.given[0])]
        means, errors = oracle.signed(grads)
        for t, r in ((t, r) for t in range(len(grads)) for r in range(case.n)):
            got = outcome.results[r][t]
            unchanged(r, got["g"], grads[t][r], f"in step {t + 1}, g")
            alike(r, got["mean"], means[t], "the average")
            for name, want in (("mean", means[t]), ("error", errors[t][r])):
                if not near(got[name], want):
                    self._said(name, t, r, got, grads, case.n)
        sent, n = outcome.nbytes(), case.n
        most = len(grads) * n * (n - 1) * (case.given[1] + 8)
        if sent > most:
            raise Wrong(
                f"the numbers are right, but all ranks together send {sent:,} bytes, and {most:,} are enough: "
                "a byte a sign, and a scale of 8 bytes, to n − 1 others."
            )

    def _said(self, name: str, t: int, r: int, got: dict, grads: list, n: int) -> None:
        what = {"mean": "the average", "error": "`error`, afterwards,"}[name]
        for slip, text in SLIPS.items():
            means, errors = oracle.signed(grads[: t + 1], slip)
            if near(got["mean"], means[t]) and near(got["error"], errors[t][r]):
                raise Wrong(f"rank {r}, step {t + 1}: {what} is wrong. {text}")
        raise Wrong(
            f"rank {r}, step {t + 1}: {what} is wrong. p = g + error, c = mean|p|·sign(p), the average of c, "
            "error ← p − c, in place."
        )


def sign_average(yours) -> None:
    """`sign_average(comm, g, error)`: the average of all ranks' scaled signs; what a rank has not said is kept."""
    ask(SignAverage(), yours)
