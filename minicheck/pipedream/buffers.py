"""The exercise of lesson 14 with a bug: PipeDream-2BW's two versions, on one rank.

Looked at: at which weights each gradient is asked for, and what comes out.
Source: Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training", section 3.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.comm.base import Comm

from ..compare import alike
from ..data_parallel.averages import near
from ..exam import Case, Exam, ask
from ..wrong import Wrong
from .oracle import buffered
from .orders import FORBIDDEN


def slope(w: Tensor, x: Tensor) -> Tensor:
    """The gradient of ½(w·x − 1)²."""
    return (w @ x - 1) * x


class TwoVersions(Exam):
    name = "two_versions"
    right = "1 to 6 groups of 1 to 5 micro-batches: gradients one update late, of the mean, added to the newest."
    forbidden = FORBIDDEN
    step = 2.0
    cases = tuple(
        Case(1, f"{groups} group{'s' * (groups > 1)} of {m}", (groups, m))
        for groups, m in ((1, 2), (2, 2), (3, 1), (4, 3), (6, 5), (3, 4))
    )

    def draw(self, case, rng):
        groups, m = case.given
        drawn = lambda: torch.randn(4, generator=rng, dtype=torch.float64)
        return [
            (
                drawn(),
                [drawn() for _ in range(groups * m)],
                (1 + int(torch.randint(4, (), generator=rng))) / 16,
                m,
            )
        ]

    def run(self, comm: Comm, yours, weight, xs, rate, m):
        asked, mine = [], weight.clone()

        def grad(w, x):
            asked.append((w.detach().clone(), x.clone()))
            return slope(w, x)

        end = yours(mine, grad, list(xs), rate, m)
        return {"end": end, "asked": asked, "weight": mine}

    def judge(self, case, args, outcome):
        (weight, xs, rate, m), got = args[0], outcome.results[0]
        if not got["weight"].equal(weight):
            raise Wrong("the weight that was given was changed, and belongs to the caller.")
        made = [buffered(weight, slope, xs[:at], rate, m) for at in range(0, len(xs) + 1, m)]
        asked, known = got["asked"], [x.tolist() for x in xs]
        if sorted(x.tolist() for _, x in asked) != sorted(known):
            raise Wrong(
                f"{len(xs)} gradients are asked for, one of each micro-batch, and here are "
                f"{len(asked)} calls of `grad`, or other micro-batches."
            )
        for i, w in sorted(
            ((known.index(x.tolist()), w) for w, x in asked), key=lambda pair: pair[0]
        ):
            self._at(
                i,
                i // m,
                w,
                made,
                buffered(weight, slope, xs[: max(0, i // m - 1) * m], rate * m, m),
            )
        alike(0, got["end"], weight, "what it returns")
        self._end(got["end"], made)

    def _at(self, i: int, g: int, w: Tensor, made: list[Tensor], summed: Tensor) -> None:
        if near(w, made[max(0, g - 1)]):
            return
        looks = {
            "That is version g, the newest: on stage 0 of a pipeline it is not there yet.": made[g],
            "The gradients were added up, and not divided by m.": summed,
            "It is the version at the start.": made[0],
        }
        text = next(
            (text for text, x in looks.items() if near(w, x)),
            "Is each update made from the newest weights, "
            "and from the gradients of its own group alone?",
        )
        raise Wrong(
            f"micro-batch {i}, group {g}: its gradient should be taken at version {max(0, g - 1)}, and is not. "
            f"{text}"
        )

    def _end(self, end: Tensor, made: list[Tensor]) -> None:
        if not near(end, made[-1]):
            which = next((k for k, x in enumerate(made) if near(end, x)), None)
            text = "Is the last group's gradient added to the newest weights, divided by m?"
            if which is not None:
                text = f"They are version {which}, and {len(made) - 1} is the newest."
            raise Wrong(f"the gradients are right, but the weights that it returns are not. {text}")


def two_versions(yours) -> None:
    """`two_versions(weight, grad, xs, rate, m)`: the weights after PipeDream-2BW."""
    ask(TwoVersions(), yours)
