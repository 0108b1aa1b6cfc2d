"""The exercises of lesson 25, Large batches: a schedule, LARS, LAMB over shards, the noise scale, clipping."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from minidist.split import uneven

from ..exam import (
    Case,
    Exam,
    Prediction,
    Report,
    Wrong,
    alike,
    alone,
    bare,
    clipped,
    close,
    few,
    few_in_all,
    finished,
    integer,
    normal,
    number,
    recognized,
    shuffled,
    unchanged,
    uniform,
    unpacked,
    wrong_means,
)
from ..oracles import large_batches as oracle

# ------------------------------------------------------------
# A schedule: warm-up, then a cosine to a floor, a function of the tokens seen and of the step's own.


class LearningRate(Report):
    """`learning_rate(seen, batch, total, warm, peak, floor)`: the rate of a step."""

    name = "learning_rate"
    right = "steps of 1 to 9 tokens in 6 schedules and beyond their ends, with and without warm-up, floors from 0 to 1."
    forbidden = oracle.FORBIDDEN
    cases = alone(
        (
            ("20 tokens, 5 of them warm-up", (20, 5, 0.1)),
            ("12 tokens without warm-up", (12, 0, 0.2)),
            ("9 tokens, 8 of them warm-up, floor 0", (9, 8, 0.0)),
            ("30 tokens, floor 1", (30, 7, 1.0)),
            ("drawn at random", None),
            ("drawn at random", None),
        )
    )

    def draw(self, case, rng):
        one = partial(integer, rng)
        total, warm, floor = case.given or (one(40, 60), one(3, 20), one(5, 40) / 100)
        late = [10 * total, 1000 * total]
        peak = (1 + uniform(rng)) * (30 if total == 12 else 1e-4)
        batches = {seen: 1 + (4 * seen + one(0, 3)) % 9 for seen in [*late, *range(total + 4)]}
        order = [*late, *shuffled(rng, total + 4)]
        return [((total, warm, peak, floor), [(seen, batches[seen]) for seen in order])]

    def run(self, comm, yours, given, order):
        found = {(seen, batch): yours(seen, batch, *given) for seen, batch in order}
        return [bare(x) for _, x in sorted(found.items())]

    def check(self, case, got, given, order):
        times = sorted(order)
        for (seen, batch), x in zip(times, got, strict=True):
            right = oracle.rate(seen, batch, *given)
            number(x, f"seen = {seen}, batch = {batch}: the rate")
            if not same_rate(x, right):
                x, rows = oracle.within(x), [oracle.wrong_rates(*u, *given) for u in times]
                looks = {text: [row[text] for row in rows] for text in rows[0]}
                fits = lambda a, b: all(map(same_rate, a, b))
                raise Wrong(
                    f"total = {given[0]}, warm = {given[1]}, peak = {given[2]:.4g}, floor = {given[3]}: the step at "
                    f"seen = {seen} with a batch of {batch} has {x:.6g}, and should have {right:.6g}. "
                    f"{recognized(got, looks, _where(seen, x, right, *given[:2]), fits)}"
                )


def same_rate(x, right: float) -> bool:
    """Equal but for rounding, as rates of 1e-4 are."""
    return isinstance(x, int | float) and math.isclose(
        oracle.within(x), right, rel_tol=1e-9, abs_tol=1e-13
    )


def _where(seen, x, right, total, warm):
    if math.isclose(x, right, rel_tol=1e-6):
        return "Nearly: is it calculated in float32, or rounded?"
    if seen < warm:
        return "In the warm-up: peak · (seen + batch)/warm, and at most the peak."
    if seen >= total:
        return "After the end: floor · peak."
    return "After the warm-up: x = (seen − warm)/(total − warm), and floor + (1 − floor)·(1 + cos πx)/2 of the peak."


# ------------------------------------------------------------
# LARS: each matrix' step has a length of its own.
#
# Several steps with a rate that changes, so that what the momentum holds shows; weights and gradients of length 0, too.


STILL = "It is as it was at the start: write in place, into the tensors that are given."
LARS = "v ← momentum·v + lr·ratio·(g + decay·w), then w ← w − v, each in place."
SHAPES = ((4, 3), (5,), (2, 3, 2), (6, 2), (7,), (3, 1), (), (2, 5))


def shows_nan(weight, grad, what: str) -> None:
    """Raise Wrong unless a weight is nan, at least where its gradient is."""
    alike(weight, grad, what)
    if not weight[grad.isnan()].isnan().all():
        raise Wrong(
            f"{what} is a number where its gradient is nan: whoever looks at the weights must see it."
        )


class LarsStep(Report):
    """`lars_step(weights, grads, velocities, lr, trust, decay, momentum)`: a step of LARS, in place."""

    name = "lars_step"
    right = "matrices and biases, 1 to 4 steps with rates that change, with and without decay, lengths of 0."
    forbidden = oracle.FORBIDDEN
    # steps, decay, momentum, zeros: weight, gradient
    cases = alone(
        (
            ("one step", (1, 0.0, 0.0, None, None)),
            ("one step with decay", (1, 0.1, 0.0, None, None)),
            ("4 steps with momentum and a warm-up", (4, 0.0, 0.9, None, None)),
            ("3 steps with decay and momentum", (3, 0.2, 0.8, None, None)),
            ("weights that are 0", (1, 0.1, 0.9, 0, None)),
            ("a gradient that is 0", (2, 0.1, 0.9, None, 3)),
            ("a gradient that is 0, without decay", (1, 0.0, 0.9, None, 3)),
            ("a trust of 20 and more", (2, 0.1, 0.95, None, None)),
            ("a nan in a gradient", (2, 0.1, 0.5, None, None)),
        )
    )

    def draw(self, case, rng):
        steps, decay, momentum, weight, gradient = case.given
        dtype = torch.float32 if (steps, decay) == (1, 0.0) else torch.float64
        drawn = lambda none: [
            normal(rng, s, dtype=dtype) * (1 + 3 * i) * (i != none) for i, s in enumerate(SHAPES)
        ]
        grads = [[g / (1 + i) for i, g in enumerate(drawn(gradient))] for _ in range(steps)]
        rates = [0.3 * (k + 1) / steps for k in range(steps)]
        trust = (0.02 + 0.01 * uniform(rng)) * (1000 if "trust" in case.what else 1)
        if "nan" in case.what:
            grads[0][0][1, 2] = math.nan
        return [(drawn(weight), grads, rates, trust, decay, momentum)]

    def run(self, comm, yours, weights, grads, rates, *how):
        kept = {"weights": weights, "velocities": [torch.zeros_like(w) for w in weights]}
        step = lambda k, given, w, v: yours(w, given, v, rates[k], *how)
        return taken(kept, grads, step)

    def check(self, case, found, weights, grads, rates, *how):
        if "nan" in case.what:
            return shows_nan(found[0]["weights"][0], grads[0][0], "step 0: weights[0]")

        def stepped(k: int, slip: str) -> dict[str, list[Tensor]]:
            one = oracle.Lars(weights, slip)
            for step, lr in zip(grads[: k + 1], rates, strict=False):
                one.step(step, lr, *how)
            return {"weights": one.w, "velocities": one.v}

        rules = {"weights": LARS, "velocities": LARS}
        for k in range(len(grads)):
            right = partial(stepped, k)
            follows(found[k], weights, grads[k], f"step {k}: ", rules, right, oracle.LARS_SLIPS)


def taken(kept: dict[str, list[Tensor]], grads: list[list[Tensor]], step) -> list[dict]:
    """The lists after each step, step(k, its gradients, *lists), which writes into them; and the gradients then."""
    found = []
    for k, own in enumerate(grads):
        given = [g.clone() for g in own]
        step(k, given, *([x.detach() for x in some] for some in kept.values()))  # the same memory
        after = {name: [x.clone() for x in some] for name, some in kept.items()}
        found.append(after | {"grads": given})
    return found


def follows(got: dict, start, grads, where: str, rules: dict[str, str], stepped, slips) -> None:
    """Raise Wrong unless the lists after a step are as they should be. stepped(slip): the lists, rightly, or with a slip."""
    unchanged(got["grads"], grads, f"{where}grads")
    right = stepped("")
    for name, rule in rules.items():
        for i, want in enumerate(right[name]):
            looks = lambda _, name=name, i=i: (
                {text: stepped(slip)[name][i] for slip, text in slips.items()}
                | {STILL: start[i] * (name == "weights")}
            )
            close(got[name][i], want, f"{where}{name}[{i}]", looks, rule)


# ------------------------------------------------------------
# LAMB where each rank has a piece of every parameter: norms are those of the whole.
#
# Looked at: weights and moments after every step, and what is sent: two numbers a parameter, in one all-reduce.


LAMB = {
    "means": "m ← β₁m + (1 − β₁)g.",
    "squares": "v ← β₂v + (1 − β₂)g².",
    "weights": "w ← w − lr·‖w‖/‖u‖·u, with u = m̂/(√v̂ + eps) + decay·w and norms of the whole.",
}


class LambStep(Exam):
    """`lamb_step(comm, weights, grads, means, squares, plain, t, lr, betas, eps, decay)`: a step of LAMB, in place."""

    name = "lamb_step"
    right = "n = 1…5, 1 to 3 steps, uneven and empty pieces, plain ones, lengths of 0, one all-reduce; 3 processes."
    forbidden = oracle.FORBIDDEN
    # steps, numbers, plain, zeros, decay
    cases = tuple(
        Case(n, f"n = {n}, {what}", given)
        for n, what, given in (
            (1, "one step", (1, (12, 7), (False, True), None, 0.1)),
            (3, "one step", (1, (12, 7, 10), (False, True, False), None, 0.1)),
            (2, "3 steps", (3, (9, 4, 5), (False, False, True), None, 0.1)),
            (4, "pieces that are empty", (2, (3, 11, 2), (False, False, True), None, 0.1)),
            (
                3,
                "weights that are 0, of all ranks and of one",
                (1, (6, 8), (False, False), "weights", 0.1),
            ),
            (
                2,
                "no decay, a gradient that is 0",
                (2, (6, 30, 25, 40), (False, True, False, False), "gradients", 0.0),
            ),
            (
                5,
                "13 parameters",
                (3, tuple(range(5, 18)), (False, True, False) * 4 + (False,), None, 0.1),
            ),
            (2, "weights a million times as large", (2, (6, 5), (False, True), "large", 0.0)),
            (2, "a nan in a gradient", (1, (6, 5), (False, False), "nan", 0.1)),
        )
    )
    processes = (Case(3, "3 real processes", (2, (7, 10), (False, True), None, 0.1)),)

    def draw(self, case, rng):
        steps, numbers, plain, zero, decay = case.given
        drawn = lambda what: [
            normal(rng, k) * (2 + 5 * i) * (i > 0 or what != zero) for i, k in enumerate(numbers)
        ]
        cut = lambda some: [
            [x.split(uneven(len(x), case.n))[r].clone() for x in some] for r in range(case.n)
        ]
        own = [[], *(cut(drawn("gradients")) for _ in range(steps))]
        lr, one, two = torch.rand(3, generator=rng, dtype=torch.float64).tolist()
        if zero == "nan":
            own[1][0][0][1] = math.nan
        large = 1e6 if zero == "large" else 1.0
        weights = cut([large * w for w in drawn("weights")])
        if zero == "weights":
            weights[0][1].zero_()
        how = 0.02 + lr / 20, (0.7 + one / 5, 0.9 + two / 20), 1e-3 * (1 + lr), decay
        return [
            (weights[r], [step[r] for step in own[1:]], list(plain), *how) for r in range(case.n)
        ]

    def run(self, comm, yours, weights, grads, plain, *how):
        lists = {"weights": weights}
        for name in ("means", "squares"):
            lists[name] = [torch.zeros_like(w) for w in weights]

        def step(k, given, *mine):
            yours(comm, mine[0], given, *mine[1:], list(plain), k + 1, *how)
            finished(comm)

        return taken(lists, grads, step)

    def judge(self, case, args, outcome):
        n, (_, grads, plain, *how) = case.n, args[0]
        whole = lambda pick: [torch.cat([pick(a)[i] for a in args]) for i in range(len(plain))]
        if case.given[3] == "nan":
            got, given = outcome.results[0][0]["weights"][0], args[0][1][0][0]
            return shows_nan(got, given, "rank 0: step 1: weights[0]")
        weights = whole(lambda a: a[0])
        steps = [whole(lambda a, k=k: a[1][k]) for k in range(len(grads))]

        def stepped(k: int, r: int, slip: str) -> dict[str, list[Tensor]]:
            one = oracle.Lamb(weights, plain, n, slip)
            for t, step in enumerate(steps[: k + 1]):
                one.step(step, t + 1, *how)
            piece = lambda some: [x.split(uneven(len(x), n))[r] for x in some]
            return {"means": piece(one.m), "squares": piece(one.v), "weights": piece(one.w)}

        for k in range(len(grads)):
            for r, results in enumerate(outcome.results):
                where, right = f"rank {r}, step {k + 1}: ", partial(stepped, k, r)
                start, own, *_ = args[r]
                follows(results[k], start, own[k], where, LAMB, right, oracle.LAMB_SLIPS)
        self._sent(case, outcome, len(grads), len(plain))

    def _sent(self, case, outcome, steps, parameters):
        n = case.n
        hint = f"two squares of 8 bytes a parameter, in {steps} steps."
        few_in_all(outcome, max(2, n) * (n - 1) * 16 * parameters * steps, hint)
        hint = f"In {steps} steps: put the squares of all parameters into one tensor and one all-reduce."
        few(outcome, math.inf, hint, 2 * (n - 1) * steps)


# ------------------------------------------------------------
# The noise scale: two unknowns from gradients of two sizes of batch, the smaller of which differs from rank to rank.
#
# Looked at: both estimates, the average that is left in place, the same on all ranks, and bytes sent.


class NoiseScale(Exam):
    """`noise_scale(comm, grad, b)`: averages `grad` in place; |G|² and tr(Σ)."""

    name = "noise_scale"
    right = "n = 2…6, even and uneven ranks: |G|² and tr(Σ), the average in place, little more sent; 3 processes."
    forbidden = oracle.FORBIDDEN
    cases = (
        *(
            Case(len(b), f"n = {len(b)}, {', '.join(map(str, b))} samples", (b, True))
            for b in ((2, 5, 1), (1, 3), (8, 8, 8, 8), (100, 3, 50, 7, 20, 1))
        ),
        Case(2, "n = 2, 16 and 8 samples, noise alone", ((16, 8), False)),
        Case(3, "n = 3, a nan on one rank", ((4, 2, 6), True)),
    )
    processes = (Case(3, "3 real processes", ((4, 2, 6), True)),)

    def draw(self, case, rng):
        drawn = lambda: normal(rng, 60)
        parts, signal = case.given
        common = drawn()
        grads = [
            common + (1 + r) * drawn() if signal else (1 - 1.9 * r) * common for r in range(case.n)
        ]
        if "nan" in case.what:
            grads[1][7] = math.nan
        return list(zip(grads, parts, strict=True))

    def run(self, comm, yours, grad, b):
        mine = grad.clone()
        # of the same memory: `grad.data = …` does not write into it
        found = yours(comm, mine.detach(), b)
        finished(comm)
        found = list(found) if isinstance(found, Tensor) and found.dim() == 1 else found
        return {"found": bare(found), "grad": mine}

    def judge(self, case, args, outcome):
        grads, parts = zip(*args, strict=True)
        n = case.n
        mean = oracle.mean(grads, parts)
        for r, got in enumerate(outcome.results):
            even = {
                "It is the mean over ranks: each counts as often as it has samples.": sum(grads) / n
            }
            looks = even if len(set(parts)) > 1 else {}
            looks |= wrong_means(r, [g * b * n / sum(parts) for g, b in args])
            looks[f"It is rank {r}'s own, as before: not averaged, or not in place."] = grads[r]
            close(got["grad"], mean, f"rank {r}: grad", looks, "It is to be the mean.")
            self._pair(r, got["found"], grads, parts)
        limit = (2 * (n - 1) * (mean.nbytes + 32) + max(2, n) * (n - 1) * 32) * 1.02
        hint = "an average of the gradient and a few numbers more. The ranks' squares are numbers: send those, not the "
        few_in_all(outcome, round(limit), f"{hint}gradients.")

    def _pair(self, r, got, grads, parts):
        pair = unpacked(got, ("|G|²", "tr(Σ)"), f"rank {r}: ")
        for name, x in pair.items():
            number(x, f"rank {r}: {name}")
        got = list(map(oracle.within, pair.values()))
        want = oracle.terms(grads, parts)
        if both_close(got, want):
            return
        n, total = len(parts), sum(parts)
        sq = lambda g: float((g * g).sum())
        own = list(map(sq, grads))
        small = sum(b * x for b, x in zip(parts, own, strict=True)) / total
        big = sq(oracle.mean(grads, parts))
        solve = oracle.solved
        pasted = (sum(own) / n - big) / (1 / parts[r] - 1 / total) if parts[r] < total else 0.0
        looks = {
            "Those are for this rank's own |g|²: average it over the ranks.": solve(
                own[r], big, n, total
            ),
            "The ranks' squares were averaged as if all ranks had as many samples: each counts b times.": solve(
                sum(own) / n, big, n, total
            ),
            "That is for ranks of equal size, with this rank's b for everybody's: here the small batches differ.": (
                big - pasted / total,
                pasted,
            ),
            "The ranks' squares were added up: average them.": solve(sum(own), big, n, total),
            "The squares, times their samples, were added up: divide by all samples.": solve(
                small * total, big, n, total
            ),
            "|G|² is not that of the large batch, which still has noise: subtract tr(Σ)/B.": (
                big,
                want[1],
            ),
            "The noise of one step may make |G|² negative; cut at 0 its mean over steps is too large, which is a bias.": (
                max(0.0, want[0]),
                want[1],
            ),
            "That takes a rank for a single sample: its square has noise tr(Σ)/b.": (
                small - (small - big) * n / (n - 1),
                (small - big) * n / (n - 1),
            ),
            "The second number is tr(Σ), and not yet the noise scale.": (
                want[0],
                want[1] / want[0],
            ),
            "They are the other way round: first |G|², then tr(Σ).": want[::-1],
            "The large batch has noise, too: of n parts of tr(Σ)/B one is in both squares.": (
                big - (small - big) / n,
                (small - big) * total / n,
            ),
        }
        if math.isnan(want[0]):
            raise Wrong(
                f"rank {r}: a gradient has a nan, and {got} hides it: both numbers should be nan."
            )
        hint = recognized(
            got,
            looks,
            "On average the first square is |G|² + n·tr(Σ)/B, and the second |G|² + tr(Σ)/B: two equations.",
            both_close,
        )
        raise Wrong(
            f"rank {r}: |G|² and tr(Σ) are {got[0]:.6g} and {got[1]:.6g}, and should be {want[0]:.6g} and "
            f"{want[1]:.6g}. {hint}"
        )


def both_close(got, want) -> bool:
    """Both equal but for rounding, which a difference of squares makes larger; nan where they are nan."""
    pairs = list(zip(got, want, strict=True))
    return all(abs(x - y) <= 1e-8 * (1 + abs(y)) or (x != x and y != y) for x, y in pairs)


# ------------------------------------------------------------
# Numbers foretold: rates, steps, samples, a ramp, a schedule, a message.


def predict_large_batches(
    rate=0.1,
    k=16,
    noise=1000,
    batch=250,
    steps=5000,
    first=32e3,
    last=3.2e6,
    over=4e9,
    total=1.6e12,
    layers=50,
):
    """0.1 at a batch of 256, and 4,096; B_noise = 1,000, 5,000 steps at the fewest, B = 250; a ramp from 32 K to 3.2 M
    over 4 B tokens; 0.5 % warm-up of 1.6 T tokens; a cosine to 10 %, after a quarter; 50 trust ratios.
    """
    wave = (1 + math.cos(math.pi / 4)) / 2
    whole = total / last
    values = {
        "linear": k * rate,
        "root": math.sqrt(k) * rate,
        "steps": steps * (1 + noise / batch),
        "samples": steps * (batch + noise),
        "ramp": over / (last - first) * math.log(last / first),
        "warm": 0.005 * whole,
        "quarter": 0.1 + 0.9 * wave,
        "nbytes": 16 * layers,
    }
    slips = {
        "linear": {
            rate: "The batch is larger: the rate grows with it.",
            values["root"]: "That is the root rule.",
            rate / k: "The rate grows with the batch.",
        },
        "root": {
            values["linear"]: "That is the linear rule.",
            rate: "The rate grows with the batch.",
            rate / math.sqrt(k): "The rate grows with the batch.",
        },
        "steps": {
            steps * (1 + batch / noise): "That is the factor of samples.",
            steps: "Those are the fewest.",
            2 * steps: "That is at B = B_noise.",
            steps * noise / batch: "And the fewest themselves: 1 + …",
        },
        "samples": {
            steps * noise: "That is the least, with the smallest batches.",
            steps
            * batch: "Those are the fewest steps, times the batch: a batch of B takes more of them.",
            values["steps"]: "Those are steps: how many samples has each?",
            steps
            * (1 + batch / noise): "Times a factor, but the fewest samples are steps · B_noise.",
        },
        "ramp": {
            over / last: "That is without a ramp.",
            over / first: "That is if the batch stayed small.",
            2
            * over
            / (
                first + last
            ): "That is for the mean of both batches: steps are short where it is small.",
            over / (last - first): "Times ln(last/first).",
            over / (last - first) * math.log10(last / first): "The natural logarithm, ln.",
        },
        "warm": {
            0.005 * total: "Those are tokens.",
            0.5 * whole: "0.5 %, not a half.",
            whole: "That is all of it.",
            5 * whole / 1e5: "0.5 % is 0.005.",
        },
        "quarter": {
            wave: "The floor is missing.",
            0.1 + wave: "The cosine spans 0.9.",
            0.1 + 0.9 * 0.75: "That is a line.",
            0.55: "That is half of the way.",
            0.1 + 0.9 * math.cos(math.pi / 4): "(1 + cos)/2, which goes from 1 to 0.",
        },
        "nbytes": {
            8 * layers: "Two squares for each: of weights, and of the update.",
            2 * layers: "Those are numbers: how many bytes has one?",
            16.0: "For one parameter.",
            4 * layers: "Two numbers for each, and 8 bytes.",
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict_large_batches,
    "Rates, steps, samples, a ramp, a schedule and a message, within 1 %.",
    {
        "noise": ("B_noise = {:,}", (600, 2000, 3000)),
        "batch": ("a batch of {}", (200, 300, 400)),
        "steps": ("{:,} steps at the fewest", (2000, 4000, 8000)),
        "layers": ("{} weight matrices", (24, 36, 96)),
    },
)


# ------------------------------------------------------------
# A bug to find: one norm over ranks of a grid, where some gradients are copies that several of them hold.
#
# Looked at: the norm that is returned, the gradients, copies that stay equal, bytes sent.


class ClipCopies(Exam):
    """`clip_copies(comm, grads, held, limit)`: scales all gradients to a norm of at most `limit`; what it was."""

    name = "clip_copies"
    right = "n = 1…5, above and below the limit, copies on all ranks and on some: each gradient counts once; 3 processes."
    forbidden = oracle.FORBIDDEN
    # for each gradient the ranks that hold it, None: each rank a piece of its own; limit over the norm
    cases = tuple(
        Case(n, f"n = {n}, {what}", given)
        for n, what, given in (
            (3, "above the limit", ((None, (0, 1, 2), None), 0.5)),
            (3, "copies that rank 0 does not hold", ((None, (1, 2)), 0.5)),
            (4, "copies on the first rank and the last", (((0, 3), None, (0, 1, 2, 3)), 0.4)),
            (2, "below the limit", ((None, (0, 1)), 1.2)),
            (1, "one rank", (((0,), None), 0.3)),
            (4, "copies alone, a rank without any", (((0, 1), (0, 1, 3)), 0.7)),
            (5, "no copies", ((None, None, None), 0.1)),
            (
                4,
                "below the limit, if copies count once",
                (((0, 1, 2, 3), None, (0, 1, 2, 3)), 1.05),
            ),
            (2, "6 gradients, no limit", (((0, 1), None) * 2 + (None, (0, 1)), math.inf)),
            (2, "no gradients", ((), 0.5)),
            (3, "a nan on one rank", (((0, 1, 2), None), 0.5)),
        )
    )
    processes = (Case(3, "3 real processes", ((None, (0, 2)), 0.5)),)

    def draw(self, case, rng):
        where, factor = case.given
        own: list[list[tuple[Tensor, int]]] = [[] for _ in range(case.n)]
        for ranks in where:
            copy = normal(rng, integer(rng, 4, 9))
            for r in range(case.n) if ranks is None else ranks:
                g = copy.clone() if ranks else normal(rng, integer(rng, 4, 9))
                own[r].append((g, len(ranks or [r])))
        limit = factor * oracle.norm(own)
        if "nan" in case.what:
            own[1][1][0][2] = math.nan
        return [([g for g, _ in some], [ranks for _, ranks in some], limit) for some in own]

    def run(self, comm, yours, grads, held, limit):
        mine = [g.clone() for g in grads]
        found = yours(comm, [g.detach() for g in mine], list(held), limit)  # of the same memory
        finished(comm)
        return {"norm": bare(found), "grads": dict(enumerate(mine))}

    def judge(self, case, args, outcome):
        n, limit = case.n, args[0][2]
        own = [list(zip(grads, held, strict=True)) for grads, held, _ in args]
        want = oracle.norm(own)
        still = ("It is as it was: g.mul_(…).", "Copies are scaled, too, on every rank.")
        told = lambda r, i: (f"grads[{i}]", {1.0: still[own[r][i][1] > 1]})
        looks = lambda r: self._looks(r, own, want, limit)
        rule = "It is the root of the sum of squares, each gradient counted once."
        mine = [dict(enumerate(grads)) for grads, _, _ in args]
        clipped(outcome, mine, limit, want, "rank {}: ".format, looks, rule, told)
        hint = "one number of 8 bytes from each rank to each other."
        few_in_all(outcome, max(2, n) * (n - 1) * 8, hint)

    def _looks(self, r, own, want, limit):
        def root(some, share):
            return math.sqrt(sum(float((g * g).sum()) * share(ranks) for g, ranks in some))

        n, everything = len(own), [each for some in own for each in some]
        first = list(own[0])
        for some in own[1:]:
            first += [each for each in some if each[1] == 1]
        return {
            "Copies count once on every rank: each gradient is to count once.": root(
                everything, lambda ranks: 1.0
            ),
            "Copies count only where rank 0 holds them: others hold some, too.": root(
                first, lambda ranks: 1.0
            ),
            "Copies are not in it: they count, once.": root(everything, lambda ranks: ranks == 1),
            "Each copy was divided by all ranks: divide it by those that hold it.": root(
                everything, lambda ranks: 1 / n if ranks > 1 else 1.0
            ),
            "The ranks' squares were averaged: add them up.": root(everything, lambda ranks: 1 / n),
            "It is the norm of this rank's alone.": root(own[r], lambda ranks: 1.0),
            "It is the norm after clipping: return what it was.": min(want, limit),
        }
