"""The exercise of lesson 17 about LARS: each matrix' step has a length of its own.

Several steps with a rate that changes, so that what the momentum holds shows; weights and gradients of length 0, too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.comm.base import Comm

from ..data_parallel.averages import near
from ..exam import Case, Exam, ask
from ..wrong import Wrong
from . import oracle

SHAPES = ((4, 3), (5,), (2, 3, 2), (6, 2), (7,), (3, 3))


class LarsStep(Exam):
    name = "lars_step"
    right = "matrices and biases, 1 to 4 steps with rates that change, with and without decay, lengths of 0."
    forbidden = oracle.FORBIDDEN
    # steps, decay, momentum, zeros: weight, gradient
    cases = tuple(
        Case(1, what, given)
        for what, given in (
            ("one step", (1, 0.0, 0.0, None, None)),
            ("one step with decay", (1, 0.1, 0.0, None, None)),
            ("4 steps with momentum and a warm-up", (4, 0.0, 0.9, None, None)),
            ("3 steps with decay and momentum", (3, 0.2, 0.8, None, None)),
            ("weights that are 0", (1, 0.1, 0.9, 0, None)),
            ("a gradient that is 0", (2, 0.1, 0.9, None, 3)),
        )
    )

    def draw(self, case, rng):
        steps, decay, momentum, weight, gradient = case.given
        dtype = torch.float32 if (steps, decay) == (1, 0.0) else torch.float64
        drawn = lambda none: [
            torch.randn(s, generator=rng, dtype=dtype) * (1 + 3 * i) * (i != none)
            for i, s in enumerate(SHAPES)
        ]
        grads = [[g / (1 + i) for i, g in enumerate(drawn(gradient))] for _ in range(steps)]
        rates = [0.3 * (k + 1) / steps for k in range(steps)]
        return [
            (
                drawn(weight),
                grads,
                rates,
                0.02 + 0.01 * float(torch.rand((), generator=rng)),
                decay,
                momentum,
            )
        ]

    def run(self, comm: Comm, yours, weights, grads, rates, trust, decay, momentum):
        velocities, found = [torch.zeros_like(w) for w in weights], []
        mine = [w.detach() for w in weights], [v.detach() for v in velocities]  # of the same memory
        for step, lr in zip(grads, rates, strict=True):
            given = [g.clone() for g in step]
            yours(list(mine[0]), given, list(mine[1]), lr, trust, decay, momentum)
            found.append(
                {
                    "w": [w.clone() for w in weights],
                    "v": [v.clone() for v in velocities],
                    "g": given,
                }
            )
        return found

    def judge(self, case, args, outcome):
        weights, grads, rates, *how = args[0]

        def stepped(slip: str, k: int) -> oracle.Lars:
            one = oracle.Lars(weights, slip)
            for step, lr in zip(grads[: k + 1], rates, strict=False):
                one.step(step, lr, *how)
            return one

        for k, (got, step) in enumerate(zip(outcome.results[0], grads, strict=True)):
            right = stepped("", k)
            where = f"step {k}: "
            for i in range(len(weights)):
                if not isinstance(got["g"][i], Tensor) or not got["g"][i].equal(step[i]):
                    raise Wrong(f"{where}grads[{i}] was changed, and belongs to the caller.")
            for name, letter in (("weights", "w"), ("velocities", "v")):
                for i, want in enumerate(getattr(right, letter)):
                    looks = lambda k=k, letter=letter, i=i: (
                        (text, getattr(stepped(slip, k), letter)[i])
                        for slip, text in oracle.LARS_SLIPS.items()
                    )
                    before = weights[i] if letter == "w" else torch.zeros_like(want)
                    self._same(f"{where}{name}[{i}]", got[letter][i], want, before, looks)

    def _same(self, what: str, got, want: Tensor, before: Tensor, looks) -> None:
        if not isinstance(got, Tensor) or got.shape != want.shape or got.dtype != want.dtype:
            raise Wrong(f"{what} is no longer a tensor of its shape and dtype.")
        if same(got, want):
            return
        hint = next((text for text, x in looks() if same(got, x)), None)
        if got.equal(before) and not hint:
            hint = "It is as it was at the start: write in place, w.sub_(…), v.mul_(…).add_(…)."
        raise Wrong(
            f"{what}, of shape {tuple(want.shape)}, is wrong. "
            f"{hint or 'v ← momentum·v + lr·ratio·(g + decay·w), then w ← w − v, each in place.'}"
        )


def same(got: Tensor, want: Tensor) -> bool:
    """Equal but for rounding, or nan in the same places."""
    if got.isnan().any() or want.isnan().any():
        return got.isnan().equal(want.isnan()) and bool(got.isnan().all())
    return near(got, want)


def lars_step(yours) -> None:
    """`lars_step(weights, grads, velocities, lr, trust, decay, momentum)`: a step of LARS, in place."""
    ask(LarsStep(), yours)
