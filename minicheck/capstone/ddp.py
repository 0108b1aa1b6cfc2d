"""The exercises of lesson 19 that PyTorch's DDP itself examines: the ring below it, and the hook in place of it."""

from __future__ import annotations

from itertools import cycle

import torch
from torch import Tensor

from minidist.comm.base import Comm

from ..compare import alike, equal_to, same
from ..data_parallel.averages import near
from ..exam import Case, Exam, Outcome, ask
from ..messages.point import to_the_right, words
from ..messages.ring import AllReduce
from ..wrong import Wrong
from . import oracle
from .engine import RATE, SIZES, train

ORACLE = "minicheck.capstone.oracle"
FORBIDDEN = ("minidist.collectives", "minidist.parallel", "minidist.train", ORACLE)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int32, torch.int64)
# Ranks, numbers (None: drawn) and reduction; the dtypes take turns.
ASKED = (
    *((3, k, "sum") for k in (6, 7, 1, 2, 0)),
    (3, 7, "max"),
    (3, 8, "min"),
    (3, 5, "prod"),
    (2, 7, "sum"),
    (2, 5, "max"),
    (4, 13, "sum"),
    (4, 10, "min"),
    (1, 4, "sum"),
    (1, 4, "max"),
    (5, 64, "sum"),
    (5, 13, "prod"),
    (4, None, "sum"),
    (5, None, "max"),
)


def draw_training(case: Case, rng: torch.Generator) -> list[tuple]:
    """Every rank's (start, x), start the same."""
    draw = lambda *shape: torch.randn(*shape, generator=rng, dtype=torch.float64)
    start = draw(sum(SIZES)) / 2
    return [(start, draw(3, 5)) for _ in range(case.n)]


def judge_training(case: Case, args: list[tuple], outcome: Outcome, rows: dict[str, str]) -> None:
    """Raise Wrong unless every rank trained as one would, and all end equal bit for bit. rows: what a slip means."""
    start, xs = args[0][0], [x for _, x in args]
    want, given = oracle.trained(start, xs), [oracle.gradient(start, x) for x in xs]
    total = sum(given)
    for r, got in enumerate(outcome.results):
        if not isinstance(got, list) or len(got) != len(want):
            raise Wrong(f"rank {r}: training did not come to its end.")
        for step, (mine, right) in enumerate(zip(got, want, strict=True)):
            alike(r, mine, right, "the parameters")
            if near(mine, right):
                continue
            moved = (start - mine) / RATE
            looks = {
                "own": given[r] / case.n,
                "sum": total,
                "twice": total / case.n**2,
                "alone": given[r],
                "nothing": 0 * total,
            }
            text = next(
                (rows[name] for name, g in looks.items() if step == 0 and near(moved, g)), ""
            )
            raise Wrong(
                f"under PyTorch's DDP rank {r} has other parameters after step {step + 1} than one rank that "
                f"has all the data, by {float((mine - right).abs().max()):.2g}. {text}".rstrip()
            )
    for r, got in enumerate(outcome.results):
        if not got[-1].equal(outcome.results[0][-1]):
            raise Wrong(
                f"under PyTorch's DDP ranks 0 and {r} are right but for rounding, and rounding differs: add "
                "up once, and pass that on. DDP never looks; the replicas drift apart."
            )


def draw_numbers(
    size: int, n: int, op: str, dtype: torch.dtype, rng: torch.Generator
) -> list[Tensor]:
    """Every rank's, of both signs, with parts where the dtype has them: sums and products are exact in any order."""
    draw = lambda low, high: torch.randint(low, high, (size,), generator=rng)
    # all digits; often all ranks have one sign
    if op in ("max", "min") and dtype.is_floating_point:
        base, *own = (torch.randn(size, generator=rng, dtype=torch.float64) for _ in range(n + 1))
        return [(2 * base + x).to(dtype) for x in own]
    most = 50 if dtype == torch.bfloat16 else 10**6
    xs = [
        (draw(1, 4) * (2 * draw(0, 2) - 1) if op == "prod" else draw(-most, most)).to(dtype)
        for _ in range(n)
    ]
    return [x / 4 if dtype.is_floating_point else x for x in xs]


class DdpRing(AllReduce):
    name = "ddp_ring"
    forbidden = FORBIDDEN
    right = (
        "n = 1…5, four reductions, five dtypes, 9 lengths and secret ones, 2(n−1) messages a rank; under "
        "PyTorch's DDP with 1 to 4 ranks, and in 3 real processes beside the backward pass."
    )
    step = 10.0
    cases = (
        *(
            Case(
                n,
                f"n = {n}, {'a drawn length' if k is None else words((k,))} of {str(dtype)[6:]}, op = {op!r}",
                (k, op, dtype),
            )
            for (n, k, op), dtype in zip(ASKED, cycle(DTYPES))
        ),
        *(Case(n, f"PyTorch's DDP on {n} rank{'s' * (n > 1)}") for n in (3, 2, 4, 1)),
    )
    processes = (
        Case(2, "2 real processes, 7 numbers", (7, "max", torch.float32)),
        Case(3, "PyTorch's DDP in 3 real processes"),
    )

    def draw(self, case, rng):
        if case.given is None:
            return draw_training(case, rng)
        size, op, dtype = case.given
        size = int(torch.randint(20, 400, (), generator=rng)) if size is None else size
        return [(x, op) for x in draw_numbers(size, case.n, op, dtype, rng)]

    def run(self, comm: Comm, yours, x, op):
        if isinstance(op, Tensor):
            return train(comm, x, op, yours)
        alias = x.detach()  # the caller's memory: `x.data = …` leaves it as it was
        yours(comm, x, op)
        return alias

    def judge(self, case, args, outcome):
        if case.given is None:
            rows = {
                "own": "It has used its own gradient alone. Is the sum written into x?",
                "sum": "It is the sum of the gradients, and not divided.",
                "twice": "It is divided by n twice: DDP has divided already, a sum is asked for.",
                "alone": "It has used its own gradient alone.",
                "nothing": "It has not moved at all.",
            }
            return judge_training(case, args, outcome, rows)
        (_, op), n, xs = args[0], case.n, [x for x, _ in args]
        want = oracle.combined(xs, op)
        for r, x in enumerate(outcome.results):
            same(r, x, want, "x", lambda x, r=r: self._guess(x, xs, want, r, op) or mixed(x, xs))
        if not xs[0].numel():
            return None
        to_the_right(case, outcome, 2 * (n - 1), [outcome.nbytes(r) for r in range(n)], "2(n−1)")
        most = 2 * (n - 1) * -(-xs[0].numel() // n) * xs[0].element_size()
        for r in range(n):
            if outcome.nbytes(r) > most:
                raise Wrong(
                    f"the numbers are right, but rank {r} sends {outcome.nbytes(r)} bytes: 2(n−1) chunks have "
                    f"{most} at most. Whole tensors where chunks are enough?"
                )
        return None

    def _guess(self, x: Tensor, xs: list[Tensor], want: Tensor, r: int, op: str) -> str | None:
        """Another reduction than the one asked for, that one done in a way of its own, or chunks astray."""
        others = [name for name in oracle.COMBINE if name != op]
        name = next(
            (name for name in others if len(xs) > 1 and x.equal(oracle.combined(xs, name))), None
        )
        if name:
            return f"It is the {name}: op says {op!r}."
        if x.isnan().any():
            return "It has nan, and no x had: numbers may be negative."
        if (x.double() - want.double()).abs().max() <= 1e-6 * want.abs().max():
            return "It is right but for rounding: keep x's dtype. A max or min is one of the numbers, not computed."
        size, found = torch.stack(xs).double().abs(), x.double().abs()
        if op in ("max", "min") and found.equal(size.amax(0) if op == "max" else size.amin(0)):
            return f"It is the {op} by magnitude, without regard to signs."
        if op == "sum":
            return super()._guess(x, xs, want, r)
        as_before = {f"It is rank {s}'s, as it was.": own for s, own in enumerate(xs)}
        return (
            equal_to(x, as_before)
            or f"The chunks of one number, of all ranks, are to be combined by {op!r}."
        )


def mixed(x: Tensor, xs: list[Tensor]) -> str | None:
    """Which chunks of which ranks have come together in the first wrong chunk: tried for three ranks, 0 to 3 times."""
    # rank, then chunk
    n, parts = len(xs), [p.double() for own in xs for p in own.tensor_split(len(xs))]
    if n != 3 or len(x) < n or len(x) % n:
        return None
    wrong = [
        i
        for i in range(n)
        if not x.tensor_split(n)[i].equal(sum(own.tensor_split(n)[i] for own in xs))
    ]
    times = torch.cartesian_prod(*[torch.arange(4.0, dtype=torch.float64)] * (n * n))
    fits = (
        (times @ torch.stack(parts) == x.tensor_split(n)[wrong[0]].double()).all(1)
        if wrong
        else torch.zeros(0)
    )
    if not fits.any():
        return None
    found = times[fits.nonzero()[0, 0]].view(n, n)  # (rank, chunk)
    if found.sum() != found[:, wrong[0]].sum():
        return (
            f"In chunk {wrong[0]} are chunks of other numbers: what arrives must be combined with the chunk of the "
            "same number. Which one sets out first?"
        )
    return (
        f"In chunk {wrong[0]} the ranks count {found[:, wrong[0]].int().tolist()} times. In the second half chunks "
        "are finished: receive them in place, and combine nothing."
    )


class MeanHook(Exam):
    name = "mean_hook"
    right = "PyTorch's DDP with your hook, on 1 to 4 ranks, several buckets: three steps, equal to one rank's."
    forbidden = ("minidist.parallel", "minidist.train", ORACLE)
    step = 10.0
    cases = tuple(Case(n, f"PyTorch's DDP on {n} rank{'s' * (n > 1)}") for n in (3, 2, 4, 1))
    processes = (Case(2, "PyTorch's DDP in 2 real processes"),)

    def draw(self, case, rng):
        return draw_training(case, rng)

    def run(self, comm: Comm, yours, start, x):
        return train(comm, start, x, _not_called, yours)

    def judge(self, case, args, outcome):
        judge_training(
            case,
            args,
            outcome,
            {
                "own": "It has used its own gradient, divided by n: the others' never arrived.",
                "sum": "It is the sum of the gradients: with a hook DDP does not divide. SGD takes steps n times too long.",
                "twice": "It is divided by n twice.",
                "alone": "It has used its own gradient alone: was the future ready before the sum was?",
                "nothing": "It has not moved at all: what is the value of the future?",
            },
        )


def _not_called(comm: Comm, x: Tensor, op: str) -> None:
    """DDP still adds up small things of its own, never the gradients: those are the hook's."""
    raise RuntimeError(f"all_reduce_ of {tuple(x.shape)} was called, and the hook is there for it")


def ddp_ring(yours) -> None:
    """`ddp_ring(comm, x, op)`: x, flat, combined over all ranks, in place. A ring; then PyTorch's DDP runs on it."""
    ask(DdpRing(), yours)


def mean_hook(yours) -> None:
    """`mean_hook(comm, bucket)`: a future whose value is the mean of the bucket's gradients over the ranks."""
    ask(MeanHook(), yours)
