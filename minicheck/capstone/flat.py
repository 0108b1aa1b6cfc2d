"""The exercises of lesson 19 about flat shards: what FSDP2 asks of a group, parameters together and gradients apart."""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.comm.base import Comm

from ..compare import equal_to, same, unchanged, who
from ..data_parallel.averages import near
from ..exam import Case, Exam, ask
from ..messages.point import to_the_right
from ..messages.ring import _astray
from ..tensor.through import ROUNDED
from . import oracle
from .ddp import FORBIDDEN

LENGTHS = ((3, 4), (3, 1), (3, 0), (2, 5), (4, 3), (1, 6), (5, 2))


class FlatExam(Exam):
    """Case.given: k, which numbers a rank has; how; their dtype."""

    forbidden = FORBIDDEN

    def judge_cost(self, case: Case, outcome) -> None:
        k, _, dtype = case.given
        if k:
            to_the_right(
                case, outcome, case.n - 1, [(case.n - 1) * k * dtype.itemsize] * case.n, "n−1"
            )


def close(got: Tensor, want: Tensor) -> bool:
    """To six digits."""
    return bool((got - want).abs().max() <= 1e-6 * want.abs().max())


def flat_cases(hows: dict) -> tuple[tuple[Case, ...], tuple[Case, ...]]:
    """Of `LENGTHS`, for each of `hows` (by name in messages), float64 and float32 in turn; and the one in processes."""
    dtypes = torch.float64, torch.float32
    cases = [
        Case(
            n,
            f"n = {n}, k = {k} of {str(dtypes[(k + i) % 2])[6:]}{words}",
            (k, how, dtypes[(k + i) % 2]),
        )
        for n, k in LENGTHS
        for i, (how, words) in enumerate(hows.items())
    ]
    return tuple(cases), (cases[1]._replace(what="3 real processes, k = 4"),)


class GatherSingle(FlatExam):
    name = "gather_single"
    right = (
        "n = 1…5, 0 to 6 numbers a rank, two dtypes, apart and in place: n−1 messages a rank to the right; then 3 "
        "processes."
    )
    cases, processes = flat_cases({False: "", True: ", in place"})

    def draw(self, case, rng):
        k, place, dtype = case.given
        return [
            (torch.randn(k, generator=rng, dtype=torch.float64).to(dtype), place)
            for _ in range(case.n)
        ]

    def run(self, comm: Comm, yours, x, place):
        output, mine = x.new_full((comm.size * len(x),), -1.0), x.clone()
        if place:  # FSDP2 gives a view
            mine = output[comm.rank * len(x) : (comm.rank + 1) * len(x)].copy_(x)
        alias = output.detach()  # the caller's memory: `output.data = …` leaves it as it was
        yours(comm, output, mine)
        return {"output": alias, "input": mine.clone()}

    def judge(self, case, args, outcome):
        xs = [x for x, _ in args]
        for r, got in enumerate(outcome.results):

            def guess(out, r=r):
                if close(out, torch.cat(xs)):
                    return ROUNDED
                parts = out.tensor_split(case.n)
                i = next(i for i in range(case.n) if not parts[i].equal(xs[i]))
                looks = {
                    f"It is rank {j}'s." + " Which chunk sets out first?" * (j != i): x
                    for j, x in enumerate(xs)
                }
                fixed = {
                    -1: "nothing arrived there.",
                    0: "it is zero. Is output cleared? input may be a view of it.",
                }
                text = next(
                    (text for x, text in fixed.items() if (parts[i] == x).all()),
                    equal_to(parts[i], looks),
                )
                return f"Part {i} of {case.n} is wrong: {text}" if text else None

            same(r, got["output"], torch.cat(xs), "output", guess)
            unchanged(r, got["input"], xs[r], "input")
        self.judge_cost(case, outcome)


class ReduceSingle(FlatExam):
    name = "reduce_single"
    right = (
        "n = 1…5, 0 to 6 numbers a rank, two dtypes, sums and means: n−1 messages of a chunk; then 3 real "
        "processes."
    )
    cases, processes = flat_cases({op: f", op = {op!r}" for op in ("sum", "mean")})

    def draw(self, case, rng):
        k, op, dtype = case.given
        # sums are exact; float32 rounds those of float64
        most = 10**10 if dtype == torch.float64 else 10**6
        return [
            (torch.randint(-most, most, (case.n * k,), generator=rng).to(dtype), op)
            for _ in range(case.n)
        ]

    def run(self, comm: Comm, yours, x, op):
        output = x.new_full((len(x) // comm.size,), -1.0)
        alias = output.detach()
        yours(comm, output, x, op)
        return {"output": alias, "input": x}

    def judge(self, case, args, outcome):
        xs = [x for x, _ in args]
        op = case.given[1]
        n = case.n
        chunks = [x.tensor_split(n) for x in xs]
        done = [oracle.combined([c[i] for c in chunks], op) for i in range(n)]
        for r, got in enumerate(outcome.results):

            def guess(out, r=r):
                total = sum(c[r] for c in chunks)
                others = {
                    f"It is chunk {i}, finished: rank {r} should have chunk {r}.": done[i]
                    for i in range(n)
                }
                looks = {
                    "It is the sum: divide by n." if op == "mean" else "It is the sum.": total,
                    "It is divided by n twice.": total / n**2,
                    "It is divided by n at each step: divide once.": _each_step(
                        [c[r] for c in chunks], r
                    ),
                    "It is the mean: op says 'sum'.": total / n,
                    "Nothing was written into it.": 0 * total - 1,
                }
                name = next((text for text, y in looks.items() if near(out, y)), None)
                mine = [c[r] for c in chunks]
                text = name or equal_to(out, others) or who(out, mine, r) or _astray(out, chunks, r)
                return text or (ROUNDED if close(out, done[r]) else None)

            if op == "sum" or not near(got["output"], done[r]):
                same(r, got["output"], done[r], "output", guess)
            unchanged(r, got["input"], xs[r], "input")
        self.judge_cost(case, outcome)


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
