"""The exercise of lesson 10 with a bug: clipping by the norm of all gradients, of which each rank holds some.

Looked at: the norm that is returned, the gradients, the same factor on all ranks, bytes sent.
"""

from __future__ import annotations

import torch

from minidist.comm.base import Comm

from ..compare import alike
from ..data_parallel.averages import near
from ..exam import Case, Exam, ask
from ..plain import real, shown
from ..wrong import Wrong
from . import oracle
from .work import FORBIDDEN


class Clip(Exam):
    name = "clip"
    right = "n = 1…5, norms above and below the limit, and 0, a rank without gradients: one norm; 3 processes."
    forbidden = FORBIDDEN
    cases = tuple(
        Case(n, f"n = {n}, {words}", (count, factor))
        for n, words, count, factor in (
            (3, "a norm above the limit", 3, 0.5),
            (3, "a norm below the limit", 2, 2.0),
            (1, "one rank", 2, 0.3),
            (4, "a norm that is below the limit on each rank alone", 2, 0.75),
            (2, "a rank without gradients", 0, 0.5),
            (5, "5 ranks", 4, 0.1),
            (2, "all gradients are zero", 2, 0.0),
        )
    )
    processes = (Case(3, "3 real processes", (2, 0.5)),)

    def draw(self, case, rng):
        count, factor = case.given
        draw = lambda i: (
            torch.randn(
                int(torch.randint(3, 9, (), generator=rng)),
                1 + i % 2,
                generator=rng,
                dtype=torch.float64,
            )
            * bool(factor)
        )
        drawn = [[draw(i).squeeze(1) for i in range(count or r)] for r in range(case.n)]
        if case.n > 2 and oracle.order_hidden(drawn):
            return self.draw(case, rng)
        limit = factor * oracle.norm(g for some in drawn for g in some) or 1.0
        return [(some, limit) for some in drawn]

    def run(self, comm: Comm, yours, grads, limit):
        mine = [g.clone() for g in grads]
        # the optimizer's memory: `g.data = …` leaves it as it was
        aliases = [g.detach() for g in mine]
        found = yours(comm, mine, limit)
        found = found.item() if isinstance(found, torch.Tensor) and found.numel() == 1 else found
        return {"norm": found, "grads": aliases}

    def judge(self, case, args, outcome):
        limit, n = args[0][1], case.n
        want = oracle.norm(g for some, _ in args for g in some)
        each = [oracle.norm(some) for some, _ in args]
        for r, got in enumerate(outcome.results):
            self._norm(r, got["norm"], want, each, limit)
            if got["norm"] != outcome.results[0]["norm"]:
                raise Wrong(
                    f"the norms of ranks 0 and {r} are right but for rounding, and rounding differs: add up "
                    "once, or in one order on all ranks. They should scale by the same factor."
                )
        factor = min(1.0, limit / (want + 1e-6))
        for r, got in enumerate(outcome.results):
            for i, g in enumerate(args[r][0]):
                alike(r, got["grads"][i], g, f"grads[{i}]")
                scale = float((got["grads"][i] * g).sum() / (g * g).sum()) if want else 1.0
                if not near(got["grads"][i], scale * g):
                    raise Wrong(
                        f"rank {r}: grads[{i}] is no multiple of what it was: clip the norm, not the numbers."
                    )
                if abs(scale - factor) > 1e-9 * factor:
                    self._factor(r, i, scale, factor, limit, each[r])
        most = max(2, n) * (n - 1) * 8
        if outcome.nbytes() > most:
            raise Wrong(
                f"the numbers are right, but all ranks together send {outcome.nbytes()} bytes: one number of 8 "
                f"bytes from each rank to each other is enough, {most} bytes."
            )

    def _norm(self, r: int, got, want: float, each: list[float], limit: float) -> None:
        if isinstance(got, bool) or not isinstance(got, int | float):
            raise Wrong(f"rank {r}: it returns {shown(got)}, and should return the norm, a number.")
        got = real(got)
        if abs(got - want) <= 1e-9 * want:
            return
        looks = {
            "It is right to six digits: something rounds it, to float32 perhaps. Keep the gradients' dtype.": want,
            "It is the norm of this rank's gradients alone: each rank would scale by another factor.": each[
                r
            ],
            "It is the sum of the ranks' norms. Squares add up, norms do not.": sum(each),
            "It is the square: the root is missing.": want**2,
            "It is the mean of the ranks' norms. Squares add up, norms do not.": sum(each)
            / len(each),
            "It is divided by √n: squares add up, and are not averaged.": want / len(each) ** 0.5,
            "It is the largest of the ranks' norms. Squares add up.": max(each),
            "It is the norm after clipping: return what it was before.": min(want, limit),
        }
        text = next(
            (text for text, x in looks.items() if abs(got - x) <= 1e-5 * x),
            "It is the root of the sum of all squares, of all ranks.",
        )
        raise Wrong(f"rank {r}: the norm is {got:.10g}, and should be {want:.10g}. {text}")

    def _factor(
        self, r: int, i: int, scale: float, factor: float, limit: float, own: float
    ) -> None:
        looks = {
            "It is right to six digits: the factor is limit / (norm + 1e-6), and nothing is rounded.": factor,
            "Nothing was scaled: write in place, g.mul_(…).": 1.0,
            "That is the factor of this rank's own norm.": min(1.0, limit / (own + 1e-6)),
            "It was scaled twice.": factor**2,
        }
        text = next((text for text, x in looks.items() if abs(scale - x) < 1e-5), "")
        if scale > 1:
            text = "Gradients below the limit stay as they are: the factor is at most 1."
        raise Wrong(
            f"rank {r}: grads[{i}] was scaled by {scale:.10g}, and should be by {factor:.10g}. {text}".rstrip()
        )


def clip(yours) -> None:
    """`clip(comm, grads, limit)`: scales all ranks' gradients to a norm of at most `limit`; returns what it was."""
    ask(Clip(), yours)
