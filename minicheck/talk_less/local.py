"""The exercises of lesson 16 about local steps: when ranks meet, and how often they should.

Looked at: the parameters before each step, the end, which must be equal bit for bit, messages and bytes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.comm.base import Comm

from ..compare import alike
from ..data_parallel.averages import near, ring_bytes
from ..exam import Case, Exam, ask
from ..plain import kind_of
from ..wrong import Wrong
from . import oracle
from .sparse import FORBIDDEN


class LocalSgd(Exam):
    name = "local_sgd"
    right = "n = 1…5, 1 to 11 steps, H from 1 to 20, several tensors: when ranks meet, the average; then 3 processes."
    forbidden = FORBIDDEN
    cases = tuple(
        Case(n, f"n = {n}, {steps} steps, H = {H}", (steps, H))
        for n, steps, H in (
            (3, 8, 4),
            (2, 7, 3),
            (1, 4, 2),
            (4, 9, 1),
            (3, 5, 20),
            (5, 11, 5),
            (2, 1, 1),
        )
    )
    processes = (Case(3, "3 real processes, 7 steps, H = 3", (7, 3)),)

    def draw(self, case, rng):
        """One flat vector stands for all parameters, which `cut` cuts."""
        draw = lambda: torch.randn(5 * case.n, generator=rng, dtype=torch.float64)
        start = draw()
        return [(start, [draw() for _ in range(case.given[0])], *case.given) for _ in range(case.n)]

    def run(self, comm: Comm, yours, start, noises, steps, H):
        params = cut(start.clone())
        calls = []
        seen = []

        def step(t):
            calls.append(t if type(t) is int else -1)
            seen.append(_flat(params))
            if 0 <= calls[-1] < len(noises):
                for p, noise in zip(params, cut(noises[t]), strict=True):
                    p.copy_((p + noise).sin() * 3)

        yours(comm, [p.detach() for p in params], step, steps, H)  # of the same memory
        return {"calls": calls, "seen": seen, "end": _flat(params)}

    def judge(self, case, args, outcome):
        steps, H = case.given
        values, noises = [a[0] for a in args], [a[1] for a in args]
        meets = {t for t in range(1, steps + 1) if t % H == 0} | {steps}
        want = oracle.local(values, noises, meets)
        for r, got in enumerate(outcome.results):
            if got["calls"] != list(range(steps)):
                raise Wrong(
                    f"rank {r}: step(t) should be called with t = 0 … {steps - 1}, once each and in order, and "
                    f"was with {got['calls'][:12]}."
                )
        for t in range(steps + 1):
            for r, got in enumerate(outcome.results):
                x = got["end"] if t == steps else got["seen"][t]
                alike(r, x, want[0][0], "params")
                if not near(x, want[t][r]):
                    self._differs(case.n, r, t, x, meets, (values, noises), want)
        for r, got in enumerate(outcome.results):
            if not got["end"].equal(outcome.results[0]["end"]):
                raise Wrong(
                    f"the average is right but for rounding, which differs on rank 0 and rank {r}: add up in "
                    "the same order everywhere."
                )
        self._bytes(case.n, len(meets), outcome)

    def _differs(
        self, n: int, r: int, t: int, x: Tensor, meets: set[int], given: tuple, want: list
    ) -> None:
        _, noises = given
        where = f"rank {r}: after {t} step{'s' * (t != 1)} the parameters are wrong."
        before = [oracle.stepped(p, of[t - 1]) for p, of in zip(want[t - 1], noises, strict=True)]
        total = sum(before)
        own = "They are this rank's own: here the ranks should meet, and average, in place."
        looks = {
            own: before[r],
            "They are the average: here the ranks should go on alone.": total / n,
            "They are the sum: divide by n.": total,
            "They are divided by n twice.": total / n**2,
            "They are rank 0's: average them.": before[0],
            "They are this rank's own, divided by n: the others' are missing.": before[r] / n,
            "They are still those before the step: write into the tensors that were given.": want[
                t - 1
            ][r],
        }
        text = next(
            (text for text, y in looks.items() if near(x, y)), "Is every tensor averaged, in place?"
        )
        if text == own and t == len(noises[0]):
            text = "The last period is shorter, or has just ended: average at its end, too."
        raise Wrong(f"{where} {text}")

    def _bytes(self, n: int, count: int, outcome) -> None:
        each = ring_bytes([torch.zeros(5 * n, dtype=torch.float64)], n)
        for r in range(n):
            if outcome.nbytes(r) > count * each:
                raise Wrong(
                    f"the numbers are right, but rank {r} sends {outcome.nbytes(r)} bytes, and {count} "
                    f"averages need {count * each}: is something sent between them, or twice?"
                )


def cut(flat: Tensor) -> list[Tensor]:
    """Views: a vector, a matrix, a vector. Rings cut each in equal chunks, so that the least bytes are known."""
    n = len(flat) // 5
    return [flat[:n], flat[n : 4 * n].view(3, n), flat[4 * n :]]


def _flat(params: list[Tensor]) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in params])


PERIODS = {
    "no root": "The root is missing.",
    "floor": "Round up: ⌈ ⌉.",
    "round": "Round up: ⌈ ⌉.",
    "one more": "⌈x⌉ is x itself where x is whole: int(x) + 1 is not.",
    "last": "The loss is compared with the first one, F₀, not with the last.",
    "largest": "The loss is compared with the first one, F₀, not with the largest.",
    "smaller": "That is the smaller of the two: ⌈√(F/F₀)·τ₀⌉, where it is below the last, is enough.",
    "inverse": "The ratio is upside down: F/F₀.",
    "no gamma": "That is not below the last period: then ⌈γ · last⌉.",
    "equal": "A period that stays the same is not below the last one: then ⌈γ · last⌉.",
    "gamma floor": "⌈γ · last⌉ is rounded up, too: a period has at least one step.",
    "gamma of τ₀": "γ shortens the last period, not τ₀.",
    "gamma of the new": "γ shortens the last period, not the one that was just found.",
    "of the last": "The root is multiplied with τ₀, not with the last period.",
}


class NextPeriod(Exam):
    name = "next_period"
    right = "Runs of 8 intervals, losses that fall, stand still and rise, γ from 0.25 to 0.875: every period."
    forbidden = FORBIDDEN
    cases = tuple(
        Case(1, what, given)
        for what, given in {
            "the first": ([2.0], 20, 0.5),
            "by hand": ([4.0, 2.4, 1.0, 1.0, 1.2, 0.02, 0.04], 20, 0.5),
            "a loss that rises first": ([1.0, 4.0, 3.9, 0.8, 0.1], 20, 0.75),
            "a loss that stands still": ([1.0] * 8, 32, 0.5),
            "losses that fall": (0.7, 40, 0.5),
            "that fall slowly": (0.9, 64, 0.875),
            "that rise": (1.2, 10, 0.25),
            "τ₀ = 1": (0.8, 1, 0.5),
        }.items()
    )

    def draw(self, case, rng):
        losses, tau_0, gamma = case.given
        if isinstance(losses, float):
            random = torch.rand(8, generator=rng, dtype=torch.float64).tolist()
            losses = [3 * losses**i * (0.8 + 0.4 * x) for i, x in enumerate(random)]
        periods: list[int] = []
        for i in range(len(losses)):
            periods.append(oracle.period(losses[: i + 1], periods, tau_0, gamma))
        asked = [
            (losses[: i + 1], periods[:i])
            for i in torch.randperm(len(losses), generator=rng).tolist()
        ]
        return [(asked, tau_0, gamma)]

    def run(self, comm: Comm, yours, asked, tau_0, gamma):
        mine = [(list(losses), list(periods)) for losses, periods in asked]
        answers = [yours(*given, tau_0, gamma) for given in mine]
        return {"answers": answers, "changed": mine != asked}

    def judge(self, case, args, outcome):
        (asked, tau_0, gamma), got = args[0], outcome.results[0]
        if got["changed"]:
            raise Wrong("`losses` or `periods` was changed, and belongs to the caller.")
        pairs = sorted(zip(asked, got["answers"], strict=True), key=lambda pair: len(pair[0][0]))
        for (losses, periods), answer in pairs:
            shown = f"F = {[round(x, 3) for x in losses]}, periods {periods}, τ₀ = {tau_0}, γ = {gamma}:"
            want = oracle.period(losses, periods, tau_0, gamma)
            if type(answer) is not int:
                kind = kind_of(answer)
                raise Wrong(f"{shown} the result is of type {kind}, and should be an int, {want}.")
            if answer != want:
                wrong = [
                    text
                    for slip, text in PERIODS.items()
                    if oracle.period(losses, periods, tau_0, gamma, slip) == answer
                ]
                text = (
                    "The first is τ₀."
                    if not periods
                    else (wrong or ["⌈√(F/F₀)·τ₀⌉ if that is below the last."])[0]
                )
                raise Wrong(f"{shown} the next is {answer}, and should be {want}. {text}")


def local_sgd(yours) -> None:
    """`local_sgd(comm, params, step, steps, H)`: steps alone, an average of the parameters after every H."""
    ask(LocalSgd(), yours)


def next_period(yours) -> None:
    """`next_period(losses, periods, tau_0, gamma)`: AdaComm's rule."""
    ask(NextPeriod(), yours)
