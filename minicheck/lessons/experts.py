"""Graders of lesson 20: seats by gates, tokens that travel once to each rank, and one norm of all gradients.

The oracle has all ranks' tokens at once, and moves none.
"""

from __future__ import annotations

import math
from functools import partial

import torch

from minidist.split import bounds, uneven

from ..exam import (
    ALL,
    Case,
    Exam,
    Prediction,
    Solo,
    Wrong,
    close,
    equal,
    few_in_all,
    matches,
    ranked,
    recognized,
    same,
    table,
    typed,
    whole,
)
from ..oracles import experts as oracle

F32, F64 = torch.float32, torch.float64


class ExpertsExam(Exam):
    """What lesson 20 builds may not be called. rule: said of a result that no usual mistake gives."""

    forbidden = oracle.FORBIDDEN
    rule: str

    def value(self, case, args, rank, name, got, want):
        looks = self.mistakes(case, args, rank, name, got)
        what = self.where(rank) + name
        # some mistakes give another number of rows: what they are says more than their shape
        if isinstance(got, torch.Tensor) and got.shape != want.shape:
            words = recognized(got, looks, self.rule, equal)
            shapes = f"{tuple(got.shape)}, and should have {tuple(want.shape)}"
            raise Wrong(f"{what} has shape {shapes}. {words}")
        same(got, want, what, looks, self.rule)


class Seated(ExpertsExam, Solo):
    """`seated(choices, gates, experts, seats)`: which choices of one sample find a seat, the surest first, (T, k) of bool."""

    name = "seated"
    given = ("choices", "gates")
    right = "1 to 3 experts a token, equal gates, seats that are many, few and none, experts that nobody wants."
    rule = (
        "Choices come by their gates, the largest first; of equal ones the first in `choices.flatten()`. One sits if fewer "
        "than `seats` choices before it are of the same expert."
    )
    cases = table(
        "{0} tokens, {1} experts a token, {2} in all, {3} seats",
        (
            (12, 2, 4, 4),
            (8, 1, 2, 3),
            (9, 3, 3, 5),
            (16, 2, 6, 2),
            (7, 1, 5, 7),
            (6, 2, 3, 0),
            (20, 2, 8, 1),
        ),
    )

    def draw(self, case, rng):
        T, k, experts, seats = case.given
        # the first experts are wanted most; a token's gates fall, and many are equal
        wishes = torch.rand(T, experts, generator=rng) - 0.1 * torch.arange(experts)
        gates = torch.randint(1, 6, (T, k), generator=rng).sort(1, descending=True).values / 8
        choices = wishes.argsort(1, descending=True)[:, :k].contiguous()
        return [(choices, gates, experts, seats)]

    def wants(self, case, args):
        return [{"the result": oracle.seated(*args[0])}]

    def mistakes(self, case, args, rank, name, got):
        choices, gates, experts, seats = args[0]
        right = oracle.seated(*args[0])
        order = gates.flatten().argsort(descending=True, stable=True)
        anyone = torch.empty(gates.numel(), dtype=torch.bool)
        anyone[order] = torch.arange(gates.numel()) < seats
        of_one = [
            oracle.seated(choices[:, j : j + 1], gates[:, j : j + 1], experts, seats)
            for j in range(choices.shape[1])
        ]
        by_gates = right.flatten()[order]
        columns = torch.arange(choices.shape[1])
        found = {
            "They sit down in the order of the tokens, as in the lesson: here the surest come first.": oracle.seated(
                choices, torch.ones_like(gates), experts, seats
            ),
            "All first choices sit down before the second ones: the gate alone decides.": oracle.seated(
                choices, -columns.expand_as(choices), experts, seats
            ),
            "All first choices come, by their gates, before the second ones: a second choice with a larger gate is before them.": (
                oracle.seated(choices, gates - 10 * columns, experts, seats)
            ),
            "All choices of a token come when its surest one does: each comes by its own gate.": (
                oracle.seated(choices, gates.amax(1, True).expand_as(gates), experts, seats)
            ),
            "The least sure sit: those with the largest gates should.": oracle.seated(
                choices, -gates, experts, seats
            ),
            "Of equal gates the later ones sit: the first in the list should. Is the sort stable?": oracle.seated(
                choices.flip(0, 1), gates.flip(0, 1), experts, seats
            ).flip(0, 1),
            "They are still in the order of the gates: each answer belongs to the place where its choice is.": (
                by_gates.view_as(right)
            ),
            "Answers are read from the places in `order`: they have to be written to them, `sits[order] = …`.": (
                by_gates[order].view_as(right)
            ),
            "One too many finds a seat: who has `seats` before it comes too late.": oracle.seated(
                choices, gates, experts, seats + 1
            ),
            "One too few finds a seat: who has seats − 1 before it still sits.": oracle.seated(
                choices, gates, experts, seats - 1
            ),
            "Each of the k choices of a token has seats of its own here: an expert's seats are for all of them together.": torch.cat(
                of_one, 1
            ),
            "Seats are counted over all experts together: each has its own.": anyone.view_as(right),
            "A token that is dropped by one expert keeps its seat at another.": right.all(
                1, keepdim=True
            ).expand(choices.shape),
            "These are the ones that are dropped.": ~right,
        }
        if matches(self.of_each(choices, gates, got), self.of_each(choices, gates, right)):
            found[
                "Among equal gates others sit: those that stand first should. Is the sort stable?"
            ] = got
        return found

    def of_each(self, choices, gates, sits) -> torch.Tensor:
        """Which experts' seats are taken, with which gates, whoever sits on them; nothing if `sits` is no such tensor."""
        if (
            not isinstance(sits, torch.Tensor)
            or sits.dtype != torch.bool
            or sits.shape != gates.shape
        ):
            return torch.empty(0)
        return (choices[sits] + gates[sits] / 10).double().sort().values


SIZES = (
    (2, 4, 2, (5, 6), F64),
    (3, 5, 3, (4, 0, 7), F32),
    (4, 6, 2, (6, 5, 3, 8), F64),
    (1, 3, 2, (7,), F64),
    (3, 3, 1, (2, 3, 9), F64),
)
IN_PROCESSES = (Case(3, "3 real processes", (5, 2, (4, 6, 3), F64)),)
TRAVELS = "n = 1…4, uneven experts, 1 to 3 a token, ranks with other numbers of tokens, with none; the bytes; 3 real processes."


def divided(experts: int, n: int) -> list[int]:
    """How many experts each rank has for those who divide them by n, and leave the rest to the last."""
    each = experts // n
    return [each] * (n - 1) + [experts - each * (n - 1)]


NOT_EVEN = (
    "The experts are split as if n divided them: `uneven(experts, n)` says how many each rank has."
)


def rows_for(choices: torch.Tensor, held: list[int]) -> list[torch.Tensor]:
    """Which tokens go to each rank, if it holds so many experts."""
    return [((choices >= first) & (choices < end)).any(1).nonzero() for first, end in bounds(held)]


def sizes_named(
    error: ValueError, right: list[int], known: dict[str, list[int]], other: str
) -> None:
    """Say in a collective's error which wrong sizes it was given, {words: sizes}, or how many there should be."""
    wrong = {words: sizes for words, sizes in known.items() if any(sizes) and sizes != right}
    words = recognized(str(error), wrong, other, lambda text, sizes: str(sizes) in text)
    error.args = (f"{error}\n  {words}" if "\n" in str(error) else f"{error}. {words}",)


def drawn(case: Case, rng: torch.Generator) -> list[tuple]:
    """Each rank's tokens, choices and gates, and how many experts there are; expert 1 has no token where one is to spare."""
    experts, k, counts, dtype = case.given
    args = []
    for count in counts:
        wishes = torch.rand(count, experts, generator=rng)
        if experts > max(4, k):
            wishes[:, 1] = -1
        choices = wishes.argsort(1, descending=True)[:, :k].contiguous()
        tokens, gates = (whole((count, width), dtype, rng) for width in (3, k))
        args.append((tokens, choices, gates, experts))
    return args


class Dispatch(ExpertsExam):
    """`dispatch(comm, tokens, choices, gates, experts)`: (received, weights, come): each token once to each rank that needs it."""

    name = "dispatch"
    returns = ("received", "weights", "come")
    given = ("tokens", "choices", "gates")
    right = TRAVELS
    rule = (
        "Rank by rank, and of a rank in its order: the tokens that chose an expert of this rank, each once; with each the "
        "gate of each of this rank's experts, 0 where it was not chosen."
    )
    cases = ranked("n = {0}, {1} experts, {2} a token, tokens {3}", SIZES)
    processes = IN_PROCESSES

    def call(self, comm, yours, *given):
        try:
            return yours(comm, *given)
        except ValueError as error:
            choices, experts = given[1], given[3]
            held = uneven(experts, comm.size)
            rows = [len(part) for part in rows_for(choices, held)]
            here = [count * held[comm.rank] for count in rows]
            right = [count * own for count, own in zip(rows, held, strict=True)]
            words = (
                "A row for a rank has a weight for each of that rank's experts, not of this one's."
            )
            sizes_named(
                error, right, {words: here}, "Does each rank know how many rows come to it?"
            )
            raise

    def draw(self, case, rng):
        return drawn(case, rng)

    def wants(self, case, args):
        return [
            dict(zip(self.returns, oracle.received(args, r), strict=True)) for r in range(case.n)
        ]

    def mistakes(self, case, args, rank, name, got):
        received, weights, come = oracle.received(args, rank)
        split = oracle.received(args, rank, held=divided(args[0][3], case.n))
        if name == "come":
            to = torch.tensor([len(oracle.received(args, r, [rank])[0]) for r in range(case.n)])
            return {
                "These are the rows that this rank sends: how many come is asked for.": to,
                "These are sums of the rows so far.": come.cumsum(0),
                "These are counts of choices: a token that wants two experts of a rank is one row.": (
                    torch.stack([(w != 0).sum() for w in weights.split(come.tolist())])
                ),
            }
        if name == "weights":
            return {
                "They say which experts are wanted: the gates are asked for.": (weights != 0).to(
                    weights.dtype
                ),
                "The columns are turned round: the first is this rank's first expert.": weights.flip(
                    1
                ),
                "A row of weights is a token, a column an expert.": weights.T,
                "Each of a token's experts has the gate of its first choice.": oracle.received(
                    [(a[0], a[1], a[2][:, :1].expand_as(a[2]), a[3]) for a in args], rank
                )[1],
                NOT_EVEN: split[1],
                "They are divided by their sum on this rank: the gates are asked for as they are.": (
                    weights / weights.sum(1, keepdim=True)
                ),
                "Weights travel column by column: a row of them belongs to each token.": torch.cat(
                    [part.T.reshape(part.shape) for part in weights.split(come.tolist())]
                ),
            }
        twice = received.repeat_interleave((weights != 0).sum(1), 0)
        columns = [received[column != 0] for column in weights.T]
        parts = zip(received.split(come.tolist()), weights.split(come.tolist()), strict=True)
        by_rank = [part[column != 0] for part, gates in parts for column in gates.T]
        first = [(a[0], a[1][:, :1], a[2][:, :1], a[3]) for a in args]
        return {
            "They lie by rank and then by expert, a row for each choice, as in the lesson: here each token comes once.": torch.cat(
                by_rank
            ),
            "Only tokens whose first choice is here have come: each comes that has any of this rank's experts.": (
                oracle.received(first, rank)[0]
            ),
            NOT_EVEN: split[0],
            "A token that wants two experts of this rank comes twice: once is enough.": twice,
            "They lie by expert, a row for each choice, as in the lesson: here each token comes once, by rank.": torch.cat(
                columns
            ),
            "All ranks' tokens are here: only those that chose an expert of this rank should be.": torch.cat(
                [a[0] for a in args]
            ),
            "These are this rank's own tokens: those of other ranks are missing.": oracle.received(
                args, rank, [rank]
            )[0],
            "Tokens of a rank are turned round: they keep its order.": torch.cat(
                [part.flip(0) for part in received.split(come.tolist())]
            ),
            "They come from the last rank to the first.": torch.cat(
                received.split(come.tolist())[::-1]
            ),
        }

    def cost(self, case, args, outcome):
        few_in_all(
            outcome,
            oracle.bytes_out(args) + 8 * case.n * (case.n - 1),
            "a token goes once to each rank that has an expert of it, with a weight for each of that rank's experts, and a "
            "count of 8 bytes to every other rank.",
        )


class Combine(ExpertsExam):
    """`combine(comm, results, come, choices, experts)`: for each of this rank's tokens the sum of what comes back."""

    name = "combine"
    given = ("results", "come", "choices")
    right = TRAVELS
    rule = "What comes back from a rank are rows for the tokens that chose an expert of it, in their order; those of a token add up."
    cases = ranked("n = {0}, {1} experts, {2} a token, tokens {3}", SIZES)
    processes = IN_PROCESSES

    def call(self, comm, yours, *given):
        try:
            return yours(comm, *given)
        except ValueError as error:
            choices, experts = given[2], given[3]
            held = uneven(experts, comm.size)
            of_expert = choices.flatten().bincount(minlength=experts)
            known = {
                "These are choices: a token with two experts on a rank comes back as one row.": [
                    int(part.sum()) for part in of_expert.split(held)
                ],
                "Only first choices are counted: a token went to each rank that has any of its experts.": [
                    len(part) for part in rows_for(choices[:, :1], held)
                ],
                NOT_EVEN: [len(part) for part in rows_for(choices, divided(experts, comm.size))],
            }
            right = [len(part) for part in rows_for(choices, held)]
            other = (
                "As many rows come back from a rank as tokens went there: those with any of the experts that "
                "`uneven(experts, n)` puts there."
            )
            sizes_named(error, right, known, other)
            raise

    def draw(self, case, rng):
        args = drawn(case, rng)
        found = []
        for r in range(case.n):
            received, _, come = oracle.received(args, r)
            results = whole((len(received), 3), received.dtype, rng)
            found.append((results, come, args[r][1], args[r][3]))
        return found

    def wants(self, case, args):
        return [{"the result": oracle.home(args, r)} for r in range(case.n)]

    def mistakes(self, case, args, rank, name, got):
        rows = oracle.rows_home(args, rank)
        here = oracle.chosen(args[rank][2], args[rank][3], case.n)
        right = oracle.home(args, rank)
        last = torch.zeros_like(right)
        for part, back in zip(here, rows, strict=True):
            last[part] = back
        of_token = here.sum(0).clamp(min=1)[:, None].to(right.dtype)
        return {
            "A token whose experts are on two ranks has the rows of the last one only: they add up.": last,
            "These are means: a token's rows add up, for the gates are in them already.": right
            / of_token,
            "These are the rows as they come back, by rank: each belongs to its token.": torch.cat(
                rows
            ),
            "Only what this rank's own experts found is here: what other ranks send back is missing.": torch.zeros_like(
                right
            ).index_add(0, here[rank].nonzero()[:, 0], rows[rank]),
        }

    def cost(self, case, args, outcome):
        rows = 0
        for r, (_, _, choices, experts) in enumerate(args):
            here = oracle.chosen(choices, experts, case.n)
            rows += int(here.sum()) - int(here[r].sum())
        few_in_all(
            outcome,
            rows * 3 * args[0][0].element_size(),
            "a row goes to its token's rank alone, and all know how many go where.",
        )


class ClipExperts(Exam):
    """`clip_experts(comm, ep, expert, rest, most)`: the clipped gradients of the mean of all losses, and their norm."""

    name = "clip_experts"
    returns = ("the gradient of the experts", "the gradient of the rest", "the norm")
    given = ("", "expert", "rest", "")
    right = "data × expert ranks 1×1, 2×2, 3×2, 2×3, 1×4 and 4×1, clipped and not; the bytes; 4 real processes."
    forbidden = oracle.FORBIDDEN
    cases = ranked(
        lambda n, ep, clipped, dtype: (
            f"data {n // ep} × expert {ep}, {'a norm that is too large' if clipped else 'nothing to clip'}"
        ),
        (
            (1, 1, False, F64),
            (4, 2, False, F64),
            (6, 2, True, F32),
            (6, 3, False, F64),
            (4, 4, True, F64),
            (4, 1, True, F64),
            (4, 2, True, F64),
        ),
    )
    processes = (Case(4, "4 real processes", (2, True, F64)),)

    def draw(self, case, rng):
        ep, clipped, dtype = case.given
        n = case.n
        # ranks that hold the same experts, and all ranks, start with other numbers
        grads = [(whole((12,), dtype, rng), whole((2, 6), dtype, rng)) for _ in range(n)]
        norm = oracle.averaged(grads, ep, 0)[2]
        most = norm / 1.7 if clipped else 100 * norm
        return [(ep, expert, rest, most) for expert, rest in grads]

    def value(self, case, args, rank, name, got, want):
        if name == self.returns[2]:
            typed(got, int | float, self.where(rank) + name, "a float")
        mistakes = partial(self.mistakes, case, args, rank, name)
        close(got, want, self.where(rank) + name, mistakes, slack=1e-5)

    def wants(self, case, args):
        ep, most = args[0][0], args[0][3]
        grads = [a[1:3] for a in args]
        found = []
        for r in range(case.n):
            expert, rest, norm = oracle.averaged(grads, ep, r)
            scale = min(1.0, most / norm)
            found.append(dict(zip(self.returns, (expert * scale, rest * scale, norm), strict=True)))
        return found

    def mistakes(self, case, args, rank, name, got):
        ep, _, _, most = args[0]
        n = case.n
        grads = [a[1:3] for a in args]
        expert, rest, norm = oracle.averaged(grads, ep, rank)
        of_group = [float(oracle.averaged(grads, ep, r)[0].double().norm()) for r in range(ep)]
        whole_rest = float(rest.double().norm())
        squares = sum(x**2 for x in of_group)
        if name == self.returns[2]:
            before = [float(g[0].double().norm()) for g in grads[rank // ep * ep :][:ep]]
            return {
                "The experts' squares are of gradients that are not averaged yet.": math.hypot(
                    *before, whole_rest
                ),
                "It is the norm of what this rank holds: other expert ranks hold other experts.": math.hypot(
                    of_group[rank % ep], whole_rest
                ),
                "The rest is counted once for each expert rank: all hold the same one.": math.sqrt(
                    squares + ep * whole_rest**2
                ),
                "The experts are counted once for each data rank, too.": math.sqrt(
                    n // ep * squares + whole_rest**2
                ),
                "Everything is counted on every rank: experts of a replica, and the rest once.": math.sqrt(
                    n // ep * squares + n * whole_rest**2
                ),
                "Norms are added up: their squares add up.": sum(of_group) + whole_rest,
                "It is the square of the norm.": norm**2,
                "It is the norm after clipping: what it was before is asked for.": min(norm, most),
                "It is the norm of the experts alone.": math.sqrt(squares),
                "It is n times as large: is it taken of sums, before the division?": n * norm,
            }
        which = name == self.returns[1]
        right = rest if which else expert
        own = sum(g[which].double() for g in grads[rank % ep :: ep])
        group = sum(g[which].double() for g in grads[rank // ep * ep :][:ep])
        everyone = sum(g[which].double() for g in grads)
        scale = min(1.0, most / norm)
        alone = float(right.double().norm())
        words = {
            "It is not clipped: its norm is above `most`.": right,
            "It is clipped by its own norm: one norm, of everything, scales all.": right
            * min(1.0, most / alone),
        }
        if norm < most:
            words = {
                "It is scaled up to the norm `most`: a smaller one stays as it is.": right
                * (most / norm)
            }
        words |= {
            "It is this rank's own gradient: nothing is averaged.": grads[rank][which] * scale,
            "It is this rank's own gradient, divided by n: what other ranks have found is not in it.": (
                grads[rank][which] / n * scale
            ),
        }
        others = {
            "It is scaled with the norm of what this rank holds.": math.hypot(
                of_group[rank % ep], whole_rest
            ),
            "It is scaled with a norm in which the rest counts once for each expert rank.": math.sqrt(
                squares + ep * whole_rest**2
            ),
        }
        for said, other in others.items():
            words[said] = right * min(1.0, most / other)
        if which:
            return words | {
                "It is the average over the data ranks alone: expert ranks have samples of their own, too.": own
                * ep
                / n
                * scale,
                "It is the average over the expert ranks alone.": group / ep * scale,
                "It is summed over the expert ranks alone: all ranks have samples of their own.": group
                / n
                * scale,
                "It is summed over the data ranks alone: all ranks have samples of their own.": own
                / n
                * scale,
                "It is a sum: divide by the number of ranks.": everyone * scale,
            }
        return words | {
            "It is the average over the data ranks: each holds the sum of the losses of ep ranks, so divide by ep, too.": own
            * ep
            / n
            * scale,
            "It is averaged with other experts: only every ep-th rank holds the same ones.": everyone
            / n
            * scale,
            "It is averaged with neighbours, who hold other experts: rank d·ep + e holds experts e.": group
            / n
            * scale,
            "It is a sum: divide by the number of all ranks.": own * scale,
            "It is divided by ep twice: n = data · ep has it already.": own / n / ep * scale,
        }

    def cost(self, case, args, outcome):
        ep, n = args[0][0], case.n
        nbytes = args[0][1].nbytes
        most = 2 * (n // ep - 1) * nbytes * ep + 2 * (n - 1) * nbytes
        few_in_all(
            outcome,
            most + 2 * 8 * n * n,
            "an all-reduce of the experts among those who share them, one of the rest, and one of a number.",
        )


# ------------------------------------------------------------
# Rows, bytes and seats, predicted.


def predict_experts(n=8, experts=32, hidden=2_048):
    """Rows, bytes, seats and the balance loss of a layer of experts."""
    tokens = 4_096
    context = 1_024
    k = 2
    rows = tokens * k * (n - 1) / n
    elsewhere = experts - experts // n
    here = 1 - elsewhere * (elsewhere - 1) / (
        experts * (experts - 1)
    )  # an expert on a certain rank
    once = tokens * (n - 1) * here
    sent = 4 * rows * hidden * 2
    seats = math.ceil(1.25 * k * context / experts)
    values = {
        "rows_away": rows,
        "rows_once": once,
        "bytes_sent": sent,
        "seats": seats,
        "naive": n / k,
        "balance": 2,
    }
    slips = {
        "rows_away": {
            tokens * (n - 1) / n: "Each token goes to two experts.",
            tokens * k: "One in n of them stays here.",
            tokens * k / n: "Those are the ones that stay.",
            4 * rows: "That is of all four all-to-alls: one dispatch is asked for.",
            rows * n: ALL,
        },
        "rows_once": {
            rows: "That is a row for each choice: two choices of experts on one rank are one row.",
            tokens
            * (n - 1)
            * (
                1 - (1 - 1 / n) ** 2
            ): "That takes the two choices as independent: a token's two experts "
            "are never the same.",
            tokens * n * here: "A token that stays on its rank is not sent.",
            tokens * here: "That is to one other rank: there are n − 1 of them.",
            tokens * (n - 1) / n: "Each token goes to two experts.",
            tokens * (n - 1): "That is each token to each rank: many ranks have no expert of it.",
        },
        "bytes_sent": {
            sent
            / 2: "That is half: forward alone, dispatch alone, one expert a token, or numbers where bytes are asked for?",
            sent * n / (n - 1): "One in n of the rows stays here, and is not sent.",
            sent * 2: "Is it with four bytes a number, or counted at both ends?",
            sent / 4: "That is dispatch alone, forward: combine sends as much, and backward both.",
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
            n: "That is with one expert a token: here a token is gathered once, and its two rows would travel.",
            (n - 1) / k: "Nearly: what stays here would have gone to n − 1 others.",
            n * k: "Two experts a token make the all-to-alls dearer, and not the gather.",
        },
        "balance": {
            1: "That is the least, where all is even over all experts.",
            experts: "That is where one expert has all tokens.",
            experts
            / 2: "Each of them has a share of 2/E, in f and in P, and there are E/2 of them.",
            1 / 2: "The factor E comes first.",
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict_experts,
    "Rows, bytes, seats, and the balance loss at its worst, within 1 %.",
    {
        # so few experts that it is more than 1 % whether a token's two are drawn from different ones
        "n": ("{} ranks", (4,)),
        "experts": ("{} experts", (16, 24, 40)),
        "hidden": ("H = {:,}", (1_024, 4_096, 8_192)),
    },
)
