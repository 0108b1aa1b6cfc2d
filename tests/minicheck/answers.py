"""A small examination, and answers to it that misbehave in every way."""

import torch

from minicheck import Case, Exam, Wrong, ask


class Double(Exam):
    """`double(comm, x)`: 2x, on every rank."""

    name, right = "double", "n = 2 and 1."
    cases = (Case(2, "n = 2"), Case(1, "n = 1"))
    processes = (Case(2, "2 real processes"),)
    step = 1.5

    def draw(self, case, rng):
        return [(torch.randint(9, (4,), generator=rng),) for _ in range(case.n)]

    def run(self, comm, yours, x):
        return yours(comm, x)

    def judge(self, case, args, outcome):
        for r, (x,) in enumerate(args):
            got = outcome.results[r]
            if not isinstance(got, torch.Tensor) or not got.equal(2 * x):
                raise Wrong(f"rank {r} has another number")


def double(yours):
    ask(Double(), yours)
