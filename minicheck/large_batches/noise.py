"""The exercise of lesson 17 about the noise scale: two unknowns from gradients of two sizes of batch.

Looked at: both estimates, the average that is left in place, the same on all ranks, and bytes sent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.comm.base import Comm

from ..compare import alike
from ..data_parallel.averages import near
from ..exam import Case, Exam, ask
from ..wrong import Wrong
from . import oracle


class NoiseScale(Exam):
    name = "noise_scale"
    right = "n = 2…5, 1 to 32 samples a rank: |G|² and tr(Σ), the average in place, little more sent; 3 processes."
    forbidden = oracle.FORBIDDEN
    cases = (
        *(
            Case(n, f"n = {n}, {b} samples a rank", (b, True))
            for n, b in ((3, 2), (2, 1), (4, 8), (5, 32))
        ),
        Case(2, "n = 2, 16 samples a rank, noise alone", (16, False)),
    )
    processes = (Case(3, "3 real processes", (4, True)),)

    def draw(self, case, rng):
        drawn = lambda: torch.randn(60, generator=rng, dtype=torch.float64)
        b, signal = case.given
        common = drawn()
        return [
            (common + (1 + r) * drawn() if signal else (1 - 1.9 * r) * common, b)
            for r in range(case.n)
        ]

    def run(self, comm: Comm, yours, grad, b):
        mine = grad.clone()
        # of the same memory: `grad.data = …` does not write into it
        found = yours(comm, mine.detach(), b)
        pair = list(found) if isinstance(found, tuple | list) else found
        if isinstance(pair, list):
            pair = [x.item() if isinstance(x, Tensor) and x.numel() == 1 else x for x in pair]
        return {"found": pair, "grad": mine}

    def judge(self, case, args, outcome):
        grads = [a[0] for a in args]
        b = args[0][1]
        n = case.n
        mean = sum(grads) / n
        for r, got in enumerate(outcome.results):
            alike(r, got["grad"], mean, "grad")
            if not near(got["grad"], mean):
                looks = {
                    "It is the sum: divide by n.": mean * n,
                    "It is as it was: average it in place.": grads[r],
                }
                hint = next(
                    (text for text, x in looks.items() if near(got["grad"], x)),
                    "It is to be the mean.",
                )
                raise Wrong(f"rank {r}: grad is wrong. {hint}")
            self._pair(r, got["found"], grads, b, n)
        limit = (2 * (n - 1) * (mean.nbytes + 16) + max(2, n) * (n - 1) * 16) * 1.02
        if outcome.nbytes() > limit:
            raise Wrong(
                f"the numbers are right, but all ranks together send {outcome.nbytes():,} bytes, and an "
                f"average of the gradient and a few numbers more are {round(limit):,}. The ranks' squares are "
                "numbers: send those, not the gradients."
            )

    def _pair(self, r: int, got, grads: list[Tensor], b: int, n: int) -> None:
        if (
            not isinstance(got, list)
            or len(got) != 2
            or not all(type(x) in (int, float) for x in got)
        ):
            raise Wrong(f"rank {r}: it should return two numbers, |G|² and tr(Σ).")
        got = list(map(oracle.within, got))
        want = oracle.terms(grads, b)
        mean = sum(grads) / n
        if close(got, want):
            return
        sq = lambda g: float((g * g).sum())
        small = sum(map(sq, grads)) / n
        big = sq(mean)
        own = sq(grads[r])
        solve = lambda s, l, x, y: ((y * l - x * s) / (y - x), (s - l) / (1 / x - 1 / y))
        looks = {
            "Those are for this rank's own |g|²: average it over the ranks.": solve(
                own, big, b, n * b
            ),
            "The ranks' squares were added up: average them.": solve(small * n, big, b, n * b),
            "Those are for norms, not for squares.": solve(
                sum(sq(g) ** 0.5 for g in grads) / n, big**0.5, b, n * b
            ),
            "Those are in gradients of a rank: it has b samples, and all have n·b.": solve(
                small, big, 1, n
            ),
            "The large batch has n·b samples, not n.": solve(small, big, b, n)
            if n != b
            else (0.0, 0.0),
            "|g|² of the sum was taken: the large batch's gradient is the mean.": solve(
                small, big * n * n, b, n * b
            ),
            "Small and large are swapped.": solve(big, small, b, n * b),
            "|G|² is not that of the large batch, which still has noise: subtract tr(Σ)/(n·b).": (
                big,
                want[1],
            ),
            "The noise of one step may make |G|² negative; cut at 0 its mean over steps is too large, which is a bias.": (
                max(0.0, want[0]),
                want[1],
            ),
            "The second is to be tr(Σ), not B_noise.": (want[0], want[1] / want[0]),
            "They are the other way round: first |G|², then tr(Σ).": want[::-1],
            "tr(Σ) is the difference over (1/b − 1/(n·b)): that is the difference alone.": (
                want[0],
                small - big,
            ),
            "The large batch has noise, too: 1/b − 1/(n·b), not 1/b.": (want[0], (small - big) * b),
            "The large batch has noise, too, and so neither is right.": (big, (small - big) * b),
        }
        hint = next(
            (text for text, pair in looks.items() if close(got, pair)),
            "E|g|² = |G|² + tr(Σ)/b before the average, and with n·b after it: two equations.",
        )
        raise Wrong(
            f"rank {r}: |G|² and tr(Σ) are {got[0]:.6g} and {got[1]:.6g}, and should be {want[0]:.6g} and "
            f"{want[1]:.6g}. {hint}"
        )


def close(got, want) -> bool:
    """Both equal but for rounding, which a difference of squares makes larger."""
    return all(abs(x - y) <= 1e-8 * max(1.0, abs(y)) for x, y in zip(got, want, strict=True))


def noise_scale(yours) -> None:
    """`noise_scale(comm, grad, b)`: averages `grad` in place; |G|² and tr(Σ)."""
    ask(NoiseScale(), yours)
