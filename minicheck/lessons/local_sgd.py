"""The exercises of lesson 24, Send seldom: local steps, an outer optimizer, fair weights, a period that adapts."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ..exam import (
    ALL,
    NUMBERS,
    Case,
    Exam,
    Prediction,
    Report,
    Wrong,
    alone,
    bare,
    close,
    few,
    identical,
    integers,
    normal,
    ranked,
    ring_bytes,
    shuffled,
    typed,
    wrong_means,
)
from ..oracles import local_sgd as oracle

# ------------------------------------------------------------
# Local steps: when ranks meet, and what each of them counts for.
#
# Looked at: the parameters before each step, the end, which must be equal bit for bit, messages and bytes.


FORBIDDEN = (
    "minidist.parallel",
    "minidist.train",
    "minidist.checkpoint",
    "minidist.study",
    "minicheck.oracles.local_sgd",
)
COPIED = "For a tensor that is not contiguous, flatten() and reshape() make a copy."


def cut(flat: Tensor) -> list[Tensor]:
    """Views: a vector, a matrix that is not contiguous, a vector. Rings cut each in equal chunks, so that the least bytes are
    known."""
    n = len(flat) // 5
    return [flat[:n], flat[n : 4 * n].view(n, 3).T, flat[4 * n :]]


def average_bytes(n: int, numbers: int = 0) -> int:
    """What a rank sends for an average of what `cut` cuts, and of so many numbers more."""
    return ring_bytes([torch.zeros(5 * n + numbers * n, dtype=torch.float64)], n)


class LocalSgd(Exam):
    """`local_sgd(comm, params, step, steps, H)`: steps alone, after every H an average that weighs ranks by their samples."""

    name = "local_sgd"
    right = "n = 1…5, 1 to 11 steps, H from 1 to 20, ranks with few samples or none: when ranks meet, the average; then 3 processes."
    forbidden = FORBIDDEN
    cases = ranked(
        "n = {}, {} steps, H = {}",
        (
            (3, 8, 4),
            (2, 7, 3),
            (1, 4, 2),
            (4, 9, 1),
            (3, 5, 20),
            (5, 11, 5),
            (2, 1, 1),
            (2, 0, 3),
        ),
    )
    processes = (Case(3, "3 real processes, 7 steps, H = 3", (7, 3)),)

    def draw(self, case, rng):
        """One flat vector stands for all parameters, which `cut` cuts. Somebody has samples in every step."""
        draw = lambda: normal(rng, 5 * case.n)
        steps, H = case.given
        start = draw()
        if case.n == 1:
            start[0] = torch.nan
        samples = [integers(rng, 0, 9, steps) for _ in range(case.n)]
        for t in range(steps):
            samples[t % case.n][t] = 11 + t  # so that shares differ in each period
        return [(start, [draw() for _ in range(steps)], own, steps, H) for own in samples]

    def run(self, comm, yours, start, noises, samples, steps, H):
        params = start.clone()
        calls = []
        seen = []

        def step(t):
            calls.append(t if type(t) is int else -1)
            seen.append(params.clone())
            if not 0 <= calls[-1] < len(noises):
                return 0
            if samples[t]:
                params.copy_((params + noises[t]).sin() * 3)
            return samples[t]

        yours(comm, cut(params), step, steps, H)
        return {"calls": calls, "seen": seen, "end": params}

    def judge(self, case, args, outcome):
        steps, H = case.given
        values, noises, samples = ([a[i] for a in args] for i in range(3))
        meets = ({t for t in range(1, steps + 1) if t % H == 0} | {steps}) - {0}
        want = oracle.local(values, noises, samples, meets)
        for r, got in enumerate(outcome.results):
            if got["calls"] != list(range(steps)):
                raise Wrong(
                    f"rank {r}: step(t) should be called with t = 0 … {steps - 1}, once each and in order, and "
                    f"was with {got['calls'][:12]}."
                )
        for t in range(steps + 1):
            first = max((m for m in meets if m < t), default=0)
            for r, got in enumerate(outcome.results):
                x = got["end"] if t == steps else got["seen"][t]
                where = f"rank {r}, after {t} step{'s' * (t != 1)}: all parameters"
                looks = partial(self._looks, r, first, t, noises, samples, want)
                close(x, want[t][r], where, looks, f"Is every tensor averaged, in place? {COPIED}")
        identical([got["end"] for got in outcome.results], "the average")
        self._bytes(case.n, len(meets), outcome)

    def _looks(self, r, first, t, noises, samples, want, got):
        if not t:
            return "No step has been taken: there is nothing to average."
        before = [
            oracle.stepped(p, of[t - 1], own[t - 1])
            for p, of, own in zip(want[t - 1], noises, samples, strict=True)
        ]
        n = len(before)
        since = [sum(own[first:t]) for own in samples]
        found = {
            "All ranks count equally here: each should count in proportion to its samples since the last average.": sum(
                before
            )
            / n,
            "The ranks have met: here they should go on alone.": oracle.weighted(before, since),
            "It is as before the step: write into the tensors that were given.": want[t - 1][r],
            "It is the sum of samples times parameters: divide by the number of all samples.": oracle.weighted(
                before, since
            )
            * sum(since),
            f"It is divided by the samples of rank {r} alone: the total over all ranks is needed, and only a message can tell it.": (
                oracle.weighted(before, since) * sum(since) / max(1, since[r])
            ),
        }
        others = {
            "Ranks count by all samples that they have ever had: start again from 0 after each average.": [
                sum(own[:t]) for own in samples
            ],
            "Ranks count by the samples of their last step: all since the last average count.": [
                own[t - 1] for own in samples
            ],
            "Ranks count by their steps with samples: count the samples.": [
                sum(c > 0 for c in own[first:t]) for own in samples
            ],
        }
        found |= {words: oracle.weighted(before, c) for words, c in others.items() if sum(c)}
        hint = "here the ranks should meet and average in place, even after a last period that is shorter."
        return found | wrong_means(r, before, hint)

    def _bytes(self, n, count, outcome):
        each = average_bytes(n, 1)
        hint = f"{count} averages need {count * each}: is something sent between them, or twice?"
        # at most one for each tensor, and one for the samples
        few(outcome, count * each, hint, count * 4 * 2 * (n - 1))


# ------------------------------------------------------------
# An outer optimizer: the way of a period as a gradient, with Nesterov's momentum.
#
# Looked at: anchors, parameters and momentum after each period, equal bit for bit on all ranks; messages and bytes.


OUTER_SLIPS = {
    "heavy ball": "That is x − ηu, the lesson's slow momentum: Nesterov's step is d + βu with the new u.",
    "lesson": "That is the lesson's slow momentum, which divides by the rate: here d is the way itself, and the step is d + βu.",
    "sign": "The way has the wrong sign: d is the anchor minus the average.",
    "average of ways": "The way counts in full: u ← βu + d, without a factor 1 − β.",
    "no way": "The step is d + βu: d is missing.",
    "old momentum": "The step is d + βu: here u stands without its factor β.",
    "no beta": "The step has the new u in it, times β: this has the old one.",
    "from the average": "The step begins at the anchor: a step from the average takes the way twice.",
}
OUTER = (
    "d = anchor − average, u ← βu + d, then anchor − η(d + βu), in place in `anchors` and `params`."
)


class OuterStep(Exam):
    """`outer_step(comm, anchors, params, momentum, eta, beta)`: from the average on with Nesterov's momentum."""

    name = "outer_step"
    right = "n = 1…5, 1 to 4 periods, several tensors: anchors, parameters, momentum, one average each; then 3 processes."
    forbidden = FORBIDDEN
    # periods, η, β
    cases = ranked(
        lambda n, periods, eta, beta: (
            f"n = {n}, {periods} period{'s' * (periods > 1)}, η = {eta}, β = {beta}"
        ),
        (
            (3, 1, 0.7, 0.9),
            (2, 3, 0.7, 0.9),
            (1, 2, 0.5, 0.5),
            (4, 4, 1.5, 0.25),
            (5, 2, 0.25, 0.75),
            (2, 2, 1.0, 0.0),
        ),
    )
    processes = (Case(3, "3 real processes, 2 periods", (2, 0.7, 0.9)),)

    def draw(self, case, rng):
        periods, eta, beta = case.given
        start, u = normal(rng, 5 * case.n), normal(rng, 5 * case.n)
        if case.n == 1:
            start[0] = torch.nan
        return [
            (start, u, [normal(rng, 5 * case.n) for _ in range(periods)], eta, beta)
            for _ in range(case.n)
        ]

    def run(self, comm, yours, start, u, ways, eta, beta):
        flat = {"anchors": start.clone(), "params": start.clone(), "momentum": u.clone()}
        seen = []
        for way in ways:
            flat["params"].add_(way)
            yours(comm, *map(cut, flat.values()), eta, beta)
            seen.append({name: x.clone() for name, x in flat.items()})
        return seen

    def judge(self, case, args, outcome):
        periods, eta, beta = case.given
        anchor, u = args[0][0], args[0][1]
        for t in range(periods):
            own = [anchor + a[2][t] for a in args]
            slips = {
                words: oracle.outer(anchor, own, u, eta, beta, slip)
                for slip, words in OUTER_SLIPS.items()
            }
            x, new = oracle.outer(anchor, own, u, eta, beta)
            wants = {"momentum": new, "params": x, "anchors": x}
            before = {"momentum": u, "params": None, "anchors": anchor}
            for r, got in enumerate(outcome.results):
                alone = oracle.outer(anchor, [own[r]], u, eta, beta)
                for name, want in wants.items():
                    i = name == "momentum"
                    looks = {
                        f"It is as before: write into `{name}` in place.": own[r]
                        if before[name] is None
                        else before[name],
                        "It is what this rank finds by itself: the way should lead to the average of all ranks.": alone[
                            i
                        ],
                        "It is the plain average: momentum should go beyond it.": sum(own) / case.n,
                    }
                    looks |= {words: pair[i] for words, pair in slips.items()}
                    where = f"rank {r}, after {t + 1} period{'s' * (t > 0)}: {name}"
                    close(got[t][name], want, where, looks, f"{OUTER} {COPIED}")
            anchor, u = x, new
        for name in ("anchors", "params", "momentum"):
            identical([got[-1][name] for got in outcome.results], name)
        each = average_bytes(case.n)
        hint = f"One average in a period needs {each} bytes: momentum need not be sent, because each rank can compute it."
        few(outcome, periods * each, hint, periods * 3 * 2 * (case.n - 1))


# ------------------------------------------------------------
# Fair weights: an average that rests where it should.


FAIR_SLIPS = {
    "lesson": "Those are the displacements, 1 − q^H: where the average rests now. Which weights p make p·(1 − q^H) "
    "proportional to the steepness?",
    "inverse": "It is upside down: a rank that walks further has to count less.",
    "no steepness": "With these weights all ranks pull equally hard: a steeper loss has to pull more, in proportion.",
    "steps only": "1/H is right for very small rates only: a rank that is close to its minimum hardly walks any further.",
    "alike": "All ranks count equally: then the average rests where the lesson's does, and that is wrong.",
    "steepness only": "That is the steepness alone: how far a rank walks in its H steps is missing.",
    "squared": "The steepness is in it twice.",
    "one H": "Here all ranks have the largest H: each should have its own.",
    "one step more": "The power is H, not H + 1.",
    "not normalized": "Their sum should be 1.",
    "by n": "Divided by n: their sum should be 1.",
}
FAIR = "Each rank's weight times the share of the way that it walks, 1 − q^H, should be in proportion to its steepness; the weights should sum to 1."


class FairWeights(Report):
    """`fair_weights(steepness, rate, steps)`: weights of an average that rests where the mean loss has its minimum."""

    name = "fair_weights"
    right = "2 to 6 ranks, 1 to 40 steps, rates small and large: every weight, and where such an average rests."
    forbidden = FORBIDDEN
    cases = alone(
        {
            "the lesson's tug of war, H = 2": ([1.0, 2.0], 0.5, [2, 2]),
            "H = 1 everywhere": ([1.0, 2.0, 0.5], 0.25, [1, 1, 1]),
            "a slow rank": ([1.0, 1.0, 1.0], 0.25, [8, 8, 2]),
            "a small rate": ([1.0, 3.0], 1e-3, [4, 1]),
            "steps that overshoot": ([1.0, 1.5, 0.2], 1.2, [3, 2, 5]),
            "one rank": ([2.0], 0.1, [7]),
            "many ranks": (6, 0.3, 12),
            "long periods": (4, 0.5, 40),
        }
    )

    def draw(self, case, rng):
        steepness, rate, steps = case.given
        if isinstance(steepness, int):
            steps = integers(rng, 1, steps, steepness)
            random = torch.rand(steepness, generator=rng, dtype=torch.float64).tolist()
            steepness = [0.1 + 2 * x for x in random]
        return [(steepness, rate, steps)]

    def run(self, comm, yours, steepness, rate, steps):
        mine = list(steepness), list(steps)
        found = yours(mine[0], rate, mine[1])
        return {"found": found, "changed": mine != (steepness, steps)}

    def check(self, case, got, steepness, rate, steps):
        if got["changed"]:
            raise Wrong("`steepness` or `steps` was changed, and belongs to the caller.")
        typed(got["found"], list, "the result", f"a list of {len(steps)} numbers")
        if len(got["found"]) != len(steps):
            raise Wrong(f"the result has {len(got['found'])} weights for {len(steps)} ranks.")
        want = oracle.fair(steepness, rate, steps)
        shown = f"steepness {[round(a, 2) for a in steepness]}, rate {rate}, steps {steps}: "
        for r, (found, right) in enumerate(zip(got["found"], want, strict=True)):
            slips = {
                words: oracle.fair(steepness, rate, steps, slip)[r]
                for slip, words in FAIR_SLIPS.items()
            }
            close(bare(found), right, f"{shown}the weight of rank {r}", slips, FAIR)


# ------------------------------------------------------------
# How long the next period is.


PERIODS = {
    "floor": "Round up: ⌈ ⌉.",
    "one more": "⌈x⌉ is x itself where x is whole: int(x) + 1 is not.",
    "equal": "A period that stays the same is not below the last one: then ⌈shrink · last⌉.",
    "no rate": "The rate has fallen since the first interval, and the result ignores that: the drift shrinks with the rate.",
    "root": "The rate comes in twice, as 1/γ of the first term and as γ² of the second: under the root stands its cube.",
    "rate": "The rate comes in twice, as 1/γ of the first term and as γ² of the second: under the root stands its cube.",
    "no root": "The cube of the rate stands under the root, too.",
    "inverse": "A lower rate allows longer periods: that is γ₀/γ, not γ/γ₀.",
    "last rate": "Compare with the rate of the first interval, to which τ₀ belongs.",
    "never up": "The rate has just been lowered: then the period may grow.",
    "below the first": "The rate was lowered earlier: only in the interval where it is lower than in the one before may the "
    "period grow.",
}
RULE = "τ₀ for the first; then what the bound gives, rounded up, if it is below the last or the rate is lower than before; else ⌈shrink · last⌉."


class NextPeriod(Report):
    """`next_period(losses, rates, periods, tau_0, shrink)`: AdaComm's rule, for a rate that falls."""

    name = "next_period"
    right = "Runs of 3 to 8 intervals, losses that fall, stand still and rise, rates that stay and fall: every period."
    forbidden = FORBIDDEN
    cases = alone(
        {
            "the first": ([2.0], [], 20, 0.5),
            "by hand": ([4.0, 2.4, 1.0, 1.0, 1.2, 0.02, 0.04], [], 20, 0.5),
            "a loss that rises first": ([1.0, 4.0, 3.9, 0.8, 0.1], [], 20, 0.75),
            "a loss that stands still": ([1.0] * 8, [], 32, 0.5),
            "a loss that hardly falls": ([1.0, 0.9, 0.89], [], 32, 0.5),
            "the rate falls to a quarter": ([1.0, 0.5, 0.3, 0.3, 0.3, 0.28], [3], 16, 0.5),
            "the rate falls twice": ([2.0, 1.0, 0.5, 0.45, 0.4, 0.1, 0.09], [2, 5], 10, 0.5),
            "losses that fall": (0.7, [], 40, 0.5),
            "that fall slowly, with the rate": (0.9, [2, 4], 64, 0.875),
            "that rise": (1.2, [], 10, 0.25),
            "τ₀ = 1": (0.8, [4], 1, 0.5),
        }
    )

    def draw(self, case, rng):
        losses, falls, tau_0, shrink = case.given
        if isinstance(losses, float):
            random = torch.rand(8, generator=rng, dtype=torch.float64).tolist()
            losses = [3 * losses**i * (0.8 + 0.4 * x) for i, x in enumerate(random)]
        rates = [0.5 * 0.25 ** sum(i >= fall for fall in falls) for i in range(len(losses))]
        periods: list[int] = []
        for i in range(1, len(losses) + 1):
            periods.append(oracle.period(losses[:i], rates[:i], periods, tau_0, shrink))
        asked = [(losses[: i + 1], rates[: i + 1], periods[:i]) for i in shuffled(rng, len(losses))]
        return [(asked, tau_0, shrink)]

    def run(self, comm, yours, asked, tau_0, shrink):
        mine = [tuple(map(list, given)) for given in asked]
        answers = [yours(*given, tau_0, shrink) for given in mine]
        return {"answers": answers, "changed": mine != asked}

    def check(self, case, got, asked, tau_0, shrink):
        if got["changed"]:
            raise Wrong("`losses`, `rates` or `periods` was changed, and belongs to the caller.")
        pairs = sorted(zip(asked, got["answers"], strict=True), key=lambda pair: len(pair[0][0]))
        for given, answer in pairs:
            losses, rates, periods = given
            shown = f"F = {[round(x, 3) for x in losses]}, rates {rates}, periods {periods}, τ₀ = {tau_0}, shrink = {shrink}:"
            want = oracle.period(*given, tau_0, shrink)
            answer = bare(answer)
            typed(answer, int, f"{shown} the result", f"an int, {want}")
            if answer != want:
                slips = (
                    text
                    for slip, text in PERIODS.items()
                    if oracle.period(*given, tau_0, shrink, slip) == answer
                )
                raise Wrong(
                    f"{shown} the next is {answer}, and should be {want}. {next(slips, RULE)}"
                )


# ------------------------------------------------------------
# Numbers foretold: bytes, seconds and memory.


def predict_local_sgd(
    n=8, psi=10e6, H=10, steps=1000, start=200, speed=12.5e6, computing=0.1, part=0.9
):
    """8 ranks, 10 million weights in fp32, 1,000 steps with H = 10, or post-local after 200; 100 Mbit/s, 0.1 s a step."""
    ring = 2 * (n - 1) / n
    dense = ring * 4 * psi
    averages = steps / H
    late = start + (steps - start) / H
    exchange = dense / speed
    whole = computing + exchange
    best = steps * whole / (start * whole + (steps - start) * computing)
    values = {
        "local": averages * dense,
        "post": late * dense,
        "states": 3 * averages * dense,
        "seconds": computing + exchange / H,
        "period": part / (1 - part) * exchange / computing,
        "best": best,
        "memory": 8 * psi,
    }
    slips = {
        "local": {
            steps * dense: "That is an average in every step: here there is one in H.",
            averages * 4 * psi: "The factor 2(n−1)/n is missing.",
            averages * 8 * psi: "Nearly: the factor is 2(n−1)/n.",
            dense: "That is one average: how many are there?",
            n * averages * dense: ALL,
            averages * dense / 4: NUMBERS,
        },
        "post": {
            averages * dense: "That is local from the start.",
            (steps - start) / H * dense: "In each of the first steps something is sent, too.",
            (start / H + steps - start)
            * dense: "The other way round: the first steps are the dense ones.",
            (start + averages)
            * dense: "The first steps are counted twice: only the others are local.",
            n * late * dense: ALL,
        },
        "states": {
            2
            * averages
            * dense: "Adam has two states for each weight, and the weights travel as well.",
            averages * dense: "That is for the weights alone.",
            3 * late * dense: "Local from the start: post-local was the number before.",
        },
        "seconds": {
            whole: "That is a dense step: an average comes after every H.",
            (computing + exchange) / H: "Every step computes: only the exchange is divided by H.",
            computing
            + 8 * exchange / H: "The link is in bytes per second: the 8 is in it already.",
            exchange / H: "Computing is part of a step.",
        },
        "period": {
            exchange / computing: "That is for one half.",
            part
            * exchange
            / computing: "Computing should be this share of the whole step: C = part·(C + exchange/H).",
            exchange / computing / (1 - part): "Nearly: C = part·(C + exchange/H).",
            (1 - part) / part * exchange / computing: "Upside down.",
        },
        "best": {
            steps / start: "Nearly: the local steps still compute.",
            whole / computing: "That is without dense steps at the start.",
            steps
            / late: "That compares messages, and with H = 10: compare times, with H as large as you like.",
            steps
            * whole
            / (late * whole): "That compares messages: compare times, with H as large as you like.",
            steps
            * whole
            / (
                start * whole + (steps - start) * (computing + exchange / H)
            ): "H may be as large as you like: then the exchange of a local step goes to zero.",
        },
        "memory": {
            4 * psi: "That is one of two: x and u.",
            2 * psi: NUMBERS,
            8 * psi / n: "Every rank has all of both.",
            12 * psi: "The weights themselves are not counted: what is there *in addition*?",
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict_local_sgd,
    "Bytes, seconds, a period and a factor, within 1 %.",
    {
        "n": ("{} ranks", (4, 5, 16)),
        "psi": ("{:,.0f} weights", (6e6, 20e6, 25e6)),
        "start": ("{} dense steps at the start", (100, 300, 400)),
        "computing": ("{} s of computing", (0.2, 0.15, 0.25)),
    },
)
