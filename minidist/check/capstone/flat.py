"""The exercises of lesson 19 about flat shards: what FSDP2 asks of a group, parameters together and gradients apart."""

from __future__ import annotations

import torch
from torch import Tensor

from ...comm.base import Comm
from ..compare import equal_to, same, unchanged, who, whole
from ..data_parallel.averages import near
from ..exam import Case, Exam, ask
from ..messages.point import to_the_right
from ..messages.ring import _astray
from ..wrong import Wrong
from . import oracle
from .ddp import FORBIDDEN

LENGTHS = ((3, 4), (3, 1), (3, 0), (2, 5), (4, 3), (1, 6), (5, 2))


class FlatExam(Exam):
    """(n, k): k numbers a rank."""

    forbidden = FORBIDDEN

    def judge_cost(self, case: Case, outcome, k: int) -> None:
        if k:
            to_the_right(case, outcome, case.n - 1, [(case.n - 1) * k * 8] * case.n, "n−1")


class GatherSingle(FlatExam):
    name = "gather_single"
    right = "n = 1…5, 0 to 6 numbers a rank, apart and in place: n−1 messages a rank to the right; then 3 processes."
    cases = tuple(Case(n, f"n = {n}, k = {k}{', in place' * place}", (k, place)) for n, k in LENGTHS
                  for place in (False, True))  # fmt: skip
    processes = (Case(3, "3 real processes, k = 4", (4, True)),)

    def draw(self, case, rng):
        return [(whole((case.given[0],), torch.float64, rng), case.given[1]) for _ in range(case.n)]

    def run(self, comm: Comm, yours, x, place):
        output, mine = torch.full((comm.size * len(x),), -1.0, dtype=torch.float64), x.clone()
        if place:  # FSDP2 gives a view
            mine = output[comm.rank * len(x) : (comm.rank + 1) * len(x)].copy_(x)
        yours(comm, output, mine)
        return {"output": output, "input": mine.clone()}

    def judge(self, case, args, outcome):
        xs, k = [x for x, _ in args], case.given[0]
        for r, got in enumerate(outcome.results):
            def guess(out, r=r):
                parts = out.tensor_split(case.n)
                i = next(i for i in range(case.n) if not parts[i].equal(xs[i]))
                looks = {f"It is rank {j}'s." + " Which chunk sets out first?" * (j != i): x for j, x in enumerate(xs)}
                fixed = {-1: "nothing arrived there.", 0: "it is zero. Is output cleared? input may be a view of it."}
                text = next((text for x, text in fixed.items() if (parts[i] == x).all()), equal_to(parts[i], looks))
                return f"Part {i} of {case.n} is wrong: {text}" if text else None

            same(r, got["output"], torch.cat(xs), "output", guess)
            unchanged(r, got["input"], xs[r], "input")
        self.judge_cost(case, outcome, k)


class ReduceSingle(FlatExam):
    name = "reduce_single"
    right = "n = 1…5, 0 to 6 numbers a rank, sums and means: n−1 messages of a chunk; then 3 real processes."
    cases = tuple(Case(n, f"n = {n}, k = {k}, op = {op!r}", (k, op)) for n, k in LENGTHS for op in ("sum", "mean"))
    processes = (Case(3, "3 real processes, k = 4", (4, "mean")),)

    def draw(self, case, rng):
        k, op = case.given
        return [(whole((case.n * k,), torch.float64, rng), op) for _ in range(case.n)]

    def run(self, comm: Comm, yours, x, op):
        output = torch.full((len(x) // comm.size,), -1.0, dtype=torch.float64)
        yours(comm, output, x, op)
        return {"output": output, "input": x}

    def judge(self, case, args, outcome):
        xs, (k, op), n = [x for x, _ in args], case.given, case.n
        chunks = [x.tensor_split(n) for x in xs]
        done = [oracle.combined([c[i] for c in chunks], op) for i in range(n)]
        for r, got in enumerate(outcome.results):
            def guess(out, r=r):
                total = sum(c[r] for c in chunks)
                others = {f"It is chunk {i}, finished: rank {r} should have chunk {r}.": done[i] for i in range(n)}
                looks = {"It is the sum: divide by n." if op == "mean" else "It is the sum.": total,
                         "It is divided by n twice.": total / n**2,
                         "It is divided by n at each step: divide once.": _each_step([c[r] for c in chunks], r),
                         "It is the mean: op says 'sum'.": total / n, "Nothing was written into it.": 0 * total - 1}
                name = next((text for text, y in looks.items() if near(out, y)), None)
                mine = [c[r] for c in chunks]
                return name or equal_to(out, others) or who(out, mine, r) or _astray(out, chunks, r)

            if op == "sum" or not near(got["output"], done[r]):
                same(r, got["output"], done[r], "output", guess)
            unchanged(r, got["input"], xs[r], "input")
        self.judge_cost(case, outcome, k)
        if any(len(got["output"]) != k for got in outcome.results):
            raise Wrong(f"output should have {k} numbers.")


def _each_step(parts: list[Tensor], r: int) -> Tensor:
    """What comes around the ring to rank r, divided by n whenever something is added."""
    n = len(parts)
    around = parts[(r + 1) % n]
    for step in range(2, n + 1):
        around = (around + parts[(r + step) % n]) / n
    return around


def gather_single(yours) -> None:
    """`gather_single(comm, output, input)`: every rank's input, (k,), in rank order in output, (n·k,)."""
    ask(GatherSingle(), yours)


def reduce_single(yours) -> None:
    """`reduce_single(comm, output, input, op)`: output, (k,), becomes chunk `rank` of all inputs, (n·k,), combined."""
    ask(ReduceSingle(), yours)
