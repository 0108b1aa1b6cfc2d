"""The exercise of lesson 07 about ranks: all step, or none, though each sees only its own gradients."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from minidist.comm.base import Comm

from ..compare import alike, ranks
from ..exam import Case, Exam, Outcome, ask
from ..plain import Other
from ..wrong import Wrong
from .oracle import FORBIDDEN
from .rounding import bare

FLAG = 8  # bytes of a flag, at most


class ShardedStep(Exam):
    name = "sharded_step"
    right = "n = 1…4, an overflow on any rank, on all, on none, a rank without parameters; then real processes."
    forbidden = FORBIDDEN
    step = 2.0
    # n, ranks that overflow (-1: the last), ranks without parameters
    given = (
        (2, (), ()),
        (2, (1,), ()),
        (3, (0,), ()),
        (4, (2,), ()),
        (3, (0, 1, 2), ()),
        (4, (-1,), (1,)),
        (3, (), (2,)),
        (1, (), ()),
        (1, (0,), ()),
    )
    cases = tuple(
        Case(
            n,
            f"n = {n}, {'no overflow' if not bad else f'an overflow on {ranks([b % n for b in bad])}'}"
            f"{f', no parameters on {ranks(list(empty))}' if empty else ''}",
            (bad, empty),
        )
        for n, bad, empty in given
    )
    processes = (
        Case(3, "3 real processes, an overflow on rank 1", ((1,), ())),
        # of as many: who says nothing cannot know which
        Case(3, "3 real processes, no overflow", ((), ())),
    )

    def draw(self, case, rng):
        bad, empty = case.given
        out, scale = [], 2.0 ** int(torch.randint(8, 17, (), generator=rng))
        lr = 0.1 + float(torch.rand((), generator=rng))
        for r in range(case.n):
            shapes = () if r in empty else ((3,), (2, 2))
            weights, grads = ([torch.randn(s, generator=rng) for s in shapes] for _ in range(2))
            if r in [b % case.n for b in bad]:
                grads[1].view(-1)[2] = math.inf if r % 2 else math.nan
            out.append((weights, [g * scale for g in grads], scale, lr))
        return out

    def run(self, comm: Comm, yours, weights, grads, scale, lr):
        # of the same memory: `w.data = …` does not write into it
        mine = [w.detach() for w in weights]
        told = yours(comm, list(mine), grads, scale, lr)
        after = [
            w if (w.shape, w.dtype) == (m.shape, m.dtype) else m
            for w, m in zip(weights, mine, strict=True)
        ]
        return {"scale": bare(told), "weights": after}

    def judge(self, case, args, outcome):
        bad = [b % case.n for b in case.given[0]]
        stepped = [
            self._stepped(r, args[r], outcome.results[r]["weights"], bad)
            for r in range(case.n)
            if args[r][0]
        ]
        holders = [r for r in range(case.n) if args[r][0]]
        moved = [r for r, s in zip(holders, stepped) if s]
        if bad and moved:
            raise Wrong(
                f"{ranks(moved)} stepped, though {ranks(bad)} found an overflow: all step, or none. The model "
                "is now of two different steps."
            )
        still = [r for r in holders if r not in moved]
        if not bad and still:
            raise Wrong(
                f"{ranks(still)} skipped, and no gradient of any rank is inf or nan. (Or were new tensors "
                "made? `w -= …` changes the weight itself.)"
            )
        for r, got in enumerate(outcome.results):
            self._scale(r, got["scale"], args[r][2] / 2 if bad else args[r][2], bad)
        self._traffic(case, outcome)

    def _stepped(self, rank: int, args: tuple, after: list, bad: list[int]) -> bool:
        weights, grads, scale, lr = args
        moved = []
        for i, (before, g, now) in enumerate(zip(weights, grads, after, strict=True)):
            want = before - lr * g / scale
            alike(rank, now, want, f"weights[{i}]")
            if now.equal(before):
                moved.append(False)
            elif near(now, want):
                moved.append(True)
            else:
                looks = {
                    "The gradient was not divided by the scale.": before - lr * g,
                    "It goes up the gradient: subtract.": before + lr * g / scale,
                    "The gradient is averaged: it belongs to this rank alone.": before
                    - lr * g / scale / 3,
                    "lr is missing.": before - g / scale,
                }
                text = next(
                    (t for t, w in looks.items() if near(now, w)),
                    "Step: w ← w − lr·g/scale. Skip: nothing.",
                )
                k = int((now - want).abs().nan_to_num(math.inf).argmax())
                raise Wrong(
                    f"rank {rank}: weights[{i}] is neither as before nor stepped: a number is "
                    f"{now.view(-1)[k]:g}, was {before.view(-1)[k]:g}, and stepped is {want.view(-1)[k]:g}. "
                    f"{text}"
                )
        if len(set(moved)) > 1:
            raise Wrong(
                f"rank {rank}: one of its tensors stepped, and another did not: look at all before any steps."
            )
        return bool(moved and moved[0])

    def _scale(self, rank: int, got, want: float, bad: list[int]) -> None:
        if got is None or isinstance(got, Other | bool) or not isinstance(got, int | float):
            raise Wrong(
                f"rank {rank}: it returns {'None' if got is None else 'no number'}: return the next scale."
            )
        if got != want:
            hint = (
                "The scales of the ranks would differ from now on."
                if bad and rank not in bad
                else "Half of it after an overflow on any rank, else as it was."
            )
            raise Wrong(f"rank {rank}: the next scale is {got:g}, and should be {want:g}. {hint}")

    def _traffic(self, case: Case, outcome: Outcome) -> None:
        for r in range(case.n):
            most = 2 * (case.n - 1)
            count = outcome.messages(r)
            sent = outcome.nbytes(r)
            if sent > most * FLAG or count > most:
                raise Wrong(
                    f"all is right, but rank {r} sends {count} messages, {sent} bytes: one flag is enough, at "
                    f"most {most} messages and {most * FLAG} bytes. Is one sent for each tensor, or are "
                    "gradients sent?"
                )


def near(a: Tensor, b: Tensor) -> bool:
    """Equal but for rounding; nan where the other has it."""
    return torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)


def sharded_step(yours) -> None:
    """`sharded_step(comm, weights, grads, scale, lr)`: all ranks step or none; returns the next scale."""
    ask(ShardedStep(), yours)
