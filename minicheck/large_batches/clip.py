"""The exercise of lesson 17 with a bug: one norm over tensor-parallel ranks, on which some gradients are copies.

Looked at: the norm that is returned, the gradients, copies that stay equal, bytes sent.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from minidist.comm.base import Comm

from ..compare import alike
from ..data_parallel.averages import near
from ..exam import Case, Exam, ask
from ..wrong import Wrong
from . import oracle


class ClipCopies(Exam):
    name = "clip_copies"
    right = "n = 1…5, above and below the limit, copies alone, no copies: each gradient counts once; 3 processes."
    forbidden = oracle.FORBIDDEN
    # copied, limit over the norm
    cases = tuple(
        Case(n, f"n = {n}, {what}", given)
        for n, what, given in (
            (3, "above the limit", ((False, True, False), 0.5)),
            (2, "below the limit", ((False, True), 1.2)),
            (1, "one rank", ((True, False), 0.3)),
            (4, "copies alone", ((True, True), 0.7)),
            (5, "no copies", ((False, False, False), 0.1)),
            (4, "below the limit, if copies count once", ((True, False, True), 1.05)),
        )
    )
    processes = (Case(3, "3 real processes", ((True, False), 0.5)),)

    def draw(self, case, rng):
        copied, factor = case.given
        drawn = lambda: torch.randn(
            int(torch.randint(4, 9, (), generator=rng)), generator=rng, dtype=torch.float64
        )
        common = [drawn() if same else None for same in copied]
        own = [[drawn() if c is None else c.clone() for c in common] for _ in range(case.n)]
        return [(some, list(copied), factor * oracle.norm(own, list(copied))) for some in own]

    def run(self, comm: Comm, yours, grads, copied, limit):
        mine = [g.clone() for g in grads]
        found = yours(comm, [g.detach() for g in mine], list(copied), limit)  # of the same memory
        return {
            "norm": found.item() if isinstance(found, Tensor) and found.numel() == 1 else found,
            "grads": mine,
        }

    def judge(self, case, args, outcome):
        n, (_, copied, limit) = case.n, args[0]
        own = [a[0] for a in args]
        want = oracle.norm(own, copied)
        for r, got in enumerate(outcome.results):
            self._norm(r, got["norm"], want, own, copied, limit)
        factor = min(1.0, limit / (want + 1e-6))
        for r, got in enumerate(outcome.results):
            for i, g in enumerate(own[r]):
                alike(r, got["grads"][i], g, f"grads[{i}]")
                if not near(got["grads"][i], factor * g):
                    self._scaled(
                        r, i, float((got["grads"][i] * g).sum() / (g * g).sum()), factor, copied[i]
                    )
        most = max(2, n) * (n - 1) * 8
        if outcome.nbytes() > most:
            raise Wrong(
                f"the numbers are right, but all ranks together send {outcome.nbytes()} bytes: one number of 8 "
                f"bytes from each rank to each other is enough, {most} bytes."
            )

    def _norm(
        self, r: int, got, want: float, own: list[list[Tensor]], copied: list[bool], limit: float
    ) -> None:
        if isinstance(got, bool) or not isinstance(got, int | float):
            raise Wrong(f"rank {r}: it should return the norm, a number.")
        got = oracle.within(got)
        if math.isclose(got, want, rel_tol=1e-6):
            return
        n, sq = len(own), lambda some: sum(float((g * g).sum()) for g in some)
        cut = sum(sq([g for g, same in zip(some, copied, strict=True) if not same]) for some in own)
        shared = sq([g for g, same in zip(own[0], copied, strict=True) if same])
        looks = {
            "Copies count once on every rank: each gradient is to count once.": cut + n * shared,
            "Copies are not in it: they count, once.": cut,
            "It is the norm of this rank's alone.": sq(own[r]),
            "It is the square: the root is missing.": want**4,
            "Squares add up, and are not averaged.": (cut + n * shared) / n,
            "It is the norm after clipping: return what it was.": min(want, limit) ** 2,
            "Norms were added up: squares add up.": sum(math.sqrt(sq(some)) for some in own) ** 2,
            "Copies are divided by n² in it: a rank's share of the *square* is one n-th.": cut
            + shared / n,
        }
        hint = next(
            (text for text, x in looks.items() if math.isclose(got, math.sqrt(x), rel_tol=1e-6)),
            "It is the root of the sum of squares, each gradient counted once.",
        )
        raise Wrong(f"rank {r}: the norm is {got:.6g}, and should be {want:.6g}. {hint}")

    def _scaled(self, r: int, i: int, scale: float, factor: float, same: bool) -> None:
        hint = ""
        if abs(scale - 1) < 1e-9:
            hint = (
                "Copies are scaled, too, on every rank." if same else "It is as it was: g.mul_(…)."
            )
        elif math.isclose(scale, factor, rel_tol=1e-4):
            hint = "Nearly: min(1, limit / (norm + 1e-6)), all of it in float64."
        hint = (
            "Below the limit nothing changes: the factor is at most 1."
            if scale > 1.000001
            else hint
        )
        raise Wrong(
            f"rank {r}: grads[{i}] was scaled by {scale:.6g}, and should be by {factor:.6g}, in place. {hint}".rstrip()
        )


def clip_copies(yours) -> None:
    """`clip_copies(comm, grads, copied, limit)`: scales all gradients to a norm of at most `limit`; what it was."""
    ask(ClipCopies(), yours)
