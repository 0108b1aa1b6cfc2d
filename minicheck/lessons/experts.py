"""Graders of lesson 20: a capacity, dispatch, combine, and who averages which gradient.

The oracle has all ranks' rows at once, and moves none.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from ..exam import (
    ALL,
    NUMBERS,
    Case,
    Exam,
    Prediction,
    Solo,
    few_in_all,
    ranked,
    same,
    table,
    whole,
)
from ..oracles import experts as oracle

F32, F64 = torch.float32, torch.float64


class ExpertsExam(Exam):
    """What lesson 20 builds may not be called. rule: said of a result that no usual mistake gives."""

    forbidden = oracle.FORBIDDEN
    rule: str

    def value(self, case, args, rank, name, got, want):
        looks = partial(self.mistakes, case, args, rank, name)
        same(got, want, self.where(rank) + name, looks, self.rule)


class Seated(ExpertsExam, Solo):
    """`seated(choices, experts, seats)`: which choices of one sample find a seat at their expert, (T, k) of bool."""

    name = "seated"
    given = ("choices",)
    right = "1 to 3 experts a token, seats that are many, few and none, experts that nobody wants."
    rule = (
        "Choices come in the order of `choices.flatten()`; one sits if fewer than `seats` choices before it are of the same "
        "expert, whether those sit or not."
    )
    cases = table(
        "{0} tokens, {1} experts a token, {2} in all, {3} seats",
        (
            (8, 1, 2, 3),
            (12, 2, 4, 4),
            (9, 3, 3, 5),
            (16, 2, 6, 2),
            (7, 1, 5, 7),
            (6, 2, 3, 0),
            (20, 2, 8, 1),
        ),
    )

    def draw(self, case, rng):
        T, k, experts, seats = case.given
        # the first experts are wanted most
        wishes = torch.rand(T, experts, generator=rng) - 0.1 * torch.arange(experts)
        return [(wishes.argsort(1, descending=True)[:, :k].contiguous(), experts, seats)]

    def wants(self, case, args):
        return [{"the result": oracle.seated(*args[0])}]

    def mistakes(self, case, args, rank, name, got):
        choices, experts, seats = args[0]
        return {
            "All first choices sit down before the second ones: token by token is asked for, so that no token hangs on a "
            "later one.": oracle.seated(choices, experts, seats, by_choice=True),
            "One too many finds a seat: who has `seats` before it comes too late.": oracle.seated(
                choices, experts, seats + 1
            ),
            "One too few finds a seat: who has seats − 1 before it still sits.": oracle.seated(
                choices, experts, seats - 1
            ),
            "Each of the k choices of a token has seats of its own here: an expert's seats are for all of them together.": torch.cat(
                [oracle.seated(column, experts, seats) for column in choices.split(1, 1)], 1
            ),
            "Seats are counted over all experts together: each has its own.": (
                torch.arange(choices.numel()) < seats
            ).view(choices.shape),
            "A token that is dropped by one expert keeps its seat at another.": oracle.seated(
                choices, experts, seats
            )
            .all(1, keepdim=True)
            .expand(choices.shape),
            "These are the ones that are dropped.": ~oracle.seated(choices, experts, seats),
            "The later ones sit: those that come first should.": oracle.seated(
                choices.flip(0), experts, seats
            ).flip(0),
        }


SIZES = (
    (2, 4, (5, 6), F64),
    (3, 5, (4, 0, 7), F32),
    (4, 6, (6, 5, 3, 8), F64),
    (1, 3, (7,), F64),
    (3, 3, (2, 3, 9), F64),
)


def drawn(case: Case, rng: torch.Generator) -> tuple[list[Tensor], list[Tensor], int]:
    """Each rank's rows, the expert of each, and how many there are; one expert has no row, where there is a spare one."""
    experts, counts, dtype = case.given
    rows = [whole((count, 3), dtype, rng) for count in counts]
    expert = [torch.randint(0, experts, (count,), generator=rng) for count in counts]
    if experts > case.n:
        expert = [e.where(e != 1, 0) for e in expert]
    return rows, expert, experts


def of_all(args: list[tuple]) -> tuple[list[Tensor], list[Tensor], int]:
    """All ranks' rows, the experts of each, and how many experts there are."""
    rows, expert, experts = zip(*args)
    return [*rows], [*expert], experts[0]


class Dispatch(ExpertsExam):
    """`dispatch(comm, rows, expert, experts)`: (received, table): the rows of this rank's experts, from all ranks."""

    name = "dispatch"
    returns = ("received", "table")
    given = ("rows", "expert")
    right = "n = 1…4, uneven experts, ranks with other numbers of rows, with none; the bytes; 3 real processes."
    rule = (
        "Sort by expert, stable; send; then put together what came for each expert, rank by rank. Whose rows are they, and in "
        "which order?"
    )
    cases = ranked("n = {0}, {1} experts, rows {2}", SIZES)
    processes = (Case(3, "3 real processes", (5, (4, 6, 3), F64)),)

    def draw(self, case, rng):
        rows, expert, experts = drawn(case, rng)
        return [(rows[r], expert[r], experts) for r in range(case.n)]

    def wants(self, case, args):
        rows, expert, experts = of_all(args)
        return [
            {
                "received": oracle.received(rows, expert, experts, r),
                "table": oracle.table(expert, experts, r),
            }
            for r in range(case.n)
        ]

    def mistakes(self, case, args, rank, name, got):
        rows, expert, experts = of_all(args)
        if name == "table":
            right = oracle.table(expert, experts, rank)
            return {
                "It is the other way round: a row of the table is a rank, a column an expert.": right.T,
                "These are sums over the ranks: who sent how many is lost.": right.sum(0),
                "These are sums over the experts: an all-to-all wants no more, but combine does.": right.sum(
                    1
                ),
            }
        return {
            "They lie by rank, as they come: put each expert's rows together.": oracle.by_rank(
                rows, expert, experts, rank
            ),
            "These are this rank's own rows: those of other ranks' tokens are missing.": torch.cat(
                [x[e == i] for x, e in [(rows[rank], expert[rank])] for i in range(experts)]
            ),
        }

    def cost(self, case, args, outcome):
        rows, expert, experts = of_all(args)
        row = 3 * rows[0].element_size()
        announced = 8 * experts * case.n  # all of each rank's counts, to one rank each
        few_in_all(
            outcome,
            sum(oracle.away(expert, experts)) * row + announced,
            "a row goes to its expert's rank alone, a count to the rank that it is about.",
        )


class Combine(ExpertsExam):
    """`combine(comm, results, table, expert, experts)`: each token's result, in the order of this rank's tokens."""

    name = "combine"
    given = ("results", "table", "expert")
    right = "n = 1…4, uneven experts, ranks with other numbers of rows, with none; the bytes; 3 real processes."
    rule = (
        "Results lie by expert, then by rank; they go back by rank, then by expert; and sorted by expert they come to the "
        "tokens, a stable sort as in dispatch."
    )
    cases = ranked("n = {0}, {1} experts, rows {2}", SIZES)
    processes = (Case(3, "3 real processes", (5, (4, 6, 3), F64)),)

    def draw(self, case, rng):
        rows, expert, experts = drawn(case, rng)
        return [
            (
                oracle.received(rows, expert, experts, r),
                oracle.table(expert, experts, r),
                expert[r],
                experts,
            )
            for r in range(case.n)
        ]

    def wants(self, case, args):
        return [{"the result": x} for x in self._rows(case, args)]

    def _rows(self, case, args) -> list[Tensor]:
        """Each rank's results, taken from the experts one after the other."""
        expert, experts = [a[2] for a in args], args[0][3]
        results = [a[0].new_empty(len(e), 3) for a, e in zip(args, expert)]
        for (first, end), (found, *_) in zip(oracle.first_end(experts, case.n), args):
            at = 0
            for i in range(first, end):
                for r in range(case.n):
                    here = (expert[r] == i).nonzero()[:, 0]
                    results[r][here] = found[at : at + len(here)]
                    at += len(here)
        return results

    def mistakes(self, case, args, rank, name, got):
        right = self._rows(case, args)[rank]
        order = args[rank][2].argsort(stable=True)
        return {
            "They lie by expert, as they come back: put each at its token's place.": right[order],
            "They were put in order the wrong way round: order[i] is where result i belongs, not where it comes from.": right[
                order
            ][order],
        }

    def cost(self, case, args, outcome):
        expert, experts = [a[2] for a in args], args[0][3]
        row = 3 * args[0][0].element_size()
        few_in_all(
            outcome,
            sum(oracle.away(expert, experts)) * row,
            "a result goes to its token's rank alone, and all know how many go where.",
        )


class AverageExperts(Exam):
    """`average_experts(comm, ep, expert, rest)`: the two gradients of the mean of all ranks' losses."""

    name = "average_experts"
    returns = ("the gradient of the experts", "the gradient of the rest")
    given = ("", "expert", "rest")
    right = "data × expert ranks 1×1, 2×2, 3×2, 2×3, 1×4 and 4×1; the bytes; 4 real processes."
    forbidden = oracle.FORBIDDEN
    cases = ranked(
        lambda n, ep, dtype: f"data {n // ep} × expert {ep}",
        ((1, 1, F64), (4, 2, F64), (6, 2, F32), (6, 3, F64), (4, 4, F64), (4, 1, F64)),
    )
    processes = (Case(4, "4 real processes", (2, F64)),)

    def draw(self, case, rng):
        ep, dtype = case.given
        return [(ep, whole((12,), dtype, rng), whole((2, 6), dtype, rng)) for _ in range(case.n)]

    def wants(self, case, args):
        ep = args[0][0]
        rest = sum(a[2].double() for a in args) / case.n
        found = []
        for r, (_, expert, _) in enumerate(args):
            own = sum(a[1].double() for a in args[r % ep :: ep]) / case.n
            names = dict(zip(self.returns, (own.to(expert.dtype), rest.to(expert.dtype))))
            found.append(names)
        return found

    def mistakes(self, case, args, rank, name, got):
        ep, n = args[0][0], case.n
        if name == self.returns[1]:
            data = sum(a[2] for a in args[rank % ep :: ep])
            group = sum(a[2] for a in args[rank // ep * ep :][:ep])
            return {
                "It is the average over the data ranks alone: expert ranks have samples of their own, too.": data
                * ep
                / n,
                "It is the average over the expert ranks alone.": group / ep,
                "It is a sum: divide by the number of ranks.": sum(a[2] for a in args),
            }
        own = sum(a[1] for a in args[rank % ep :: ep])
        return {
            "It is the average over the data ranks: each holds the sum of the losses of ep ranks, so divide by ep, too.": own
            * ep
            / n,
            "It is averaged with other experts: only every ep-th rank holds the same ones.": sum(
                a[1] for a in args
            )
            / n,
            "It is averaged with neighbours, who hold other experts: rank d·ep + e holds experts e.": sum(
                a[1] for a in args[rank // ep * ep :][:ep]
            )
            / n,
            "It is a sum: divide by the number of all ranks.": own,
        }

    def cost(self, case, args, outcome):
        ep, n = args[0][0], case.n
        data = n // ep
        nbytes = [a[1].nbytes for a in args]
        most = 2 * (data - 1) * nbytes[0] * ep + 2 * (n - 1) * nbytes[0]
        few_in_all(
            outcome,
            most,
            "an all-reduce of the experts among those who share them, one of the rest.",
        )


# ------------------------------------------------------------
# Rows, bytes and seats, predicted.


def predict_experts(n=8, experts=64, hidden=2_048):
    """Rows, bytes, seats and the balance loss of a layer of experts."""
    tokens = 4_096
    context = 1_024
    k = 2
    rows = tokens * k * (n - 1) / n
    sent = 4 * rows * hidden * 2
    seats = math.ceil(1.25 * k * context / experts)
    values = {
        "rows_away": rows,
        "bytes_sent": sent,
        "seats": seats,
        "naive": n,
        "balance": experts,
    }
    slips = {
        "rows_away": {
            tokens * (n - 1) / n: "Each token goes to two experts.",
            tokens * k: "One in n of them stays here.",
            tokens * k / n: "Those are the ones that stay.",
            rows * n: ALL,
        },
        "bytes_sent": {
            sent / 2: "That is forward alone, or dispatch alone: there are two of each.",
            sent / 4: "That is dispatch alone, forward: combine sends as much, and backward both.",
            4 * rows * hidden: NUMBERS,
            sent * n: ALL,
        },
        "seats": {
            math.ceil(1.25 * context / experts): "Each token takes two seats.",
            math.ceil(k * context / experts): "Times the capacity factor.",
            math.ceil(
                1.25 * k * tokens / experts
            ): "That is over all tokens of the rank: of a sample is asked for.",
        },
        "naive": {
            n - 1: "Nearly: what stays here would have gone to n − 1 others.",
            2 * n: "Both are forward.",
        },
        "balance": {
            1: "That is the least, where all is even.",
            1 / experts: "The factor E comes first.",
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict_experts,
    "Rows, bytes, seats, and the balance loss at its worst, within 1 %.",
    {
        "n": ("{} ranks", (4, 16, 32)),
        "experts": ("{} experts", (32, 128, 256)),
        "hidden": ("H = {:,}", (1_024, 4_096, 8_192)),
    },
)
