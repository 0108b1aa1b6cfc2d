"""The exercise of lesson 14 in which a stage trains without a flush. Lesson 13's, with updates and versions.

Looked at: the last weights, the order of the work, messages, and how many graphs and versions are alive.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

from minidist.comm.base import Comm
from minidist.parallel.schedules import in_flight, parse

from ..data_parallel.averages import near
from ..exam import Case, ask
from ..pipelines.stage import RunStage
from ..pipelines.words import said
from ..wrong import Wrong
from .oracle import delayed, late_weights, updated
from .orders import FORBIDDEN
from .store import Made

LAYERS = 2


class Product(nn.Module):
    """x·w. Its graph holds the parameter itself, as a layer norm's does; nn.Linear's holds a view of old numbers."""

    def __init__(self, weight: Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight.clone())

    def forward(self, x):
        return x @ self.weight


class RunPipeDream(RunStage):
    name = "run_pipedream"
    right = (
        "1 to 4 stages, up to 11 micro-batches: the weights of gradients S − 1 − stage updates late, or one more "
        "where updates come later; two messages an edge and micro-batch; then 3 real processes."
    )
    forbidden = FORBIDDEN
    cases = (
        *(Case(S, said(S, M), ("1f1b", M)) for S, M in ((2, 4), (1, 3), (2, 1), (4, 11))),
        Case(3, f"{said(3, 6)}, each update a forward later", ("late", 6)),
    )
    processes = (Case(3, "3 real processes, 5 micro-batches", ("1f1b", 5)),)

    def draw(self, case, rng):
        kind, M = case.given
        given = super().draw(case._replace(given=("1f1b", M)), rng)
        rows = [updated("1f1b", s, case.n, M, 1) for s in range(case.n)]
        rows = [delayed(row) if kind == "late" else row for row in rows]
        rate = (1 + int(torch.randint(4, (), generator=rng))) / 16
        return [
            (weights, row, xs, ys, rate)
            for row, (weights, _, xs, ys) in zip(rows, given, strict=True)
        ]

    def part(self, weights):
        linear = nn.Linear(*weights[1].shape, bias=False)
        linear.weight = nn.Parameter(weights[1].clone())
        return nn.Sequential(Product(weights[0]), nn.Tanh(), linear)

    def run(self, comm: Comm, yours, weights, order, xs, ys, rate):
        counts = [0]

        def counted(down, up, part, *rest):
            with Made(list(part.parameters())) as made:
                part.register_forward_pre_hook(lambda *_: counts.append(made.alive()))
                yours(down, up, part, *rest, rate)

        return super().run(comm, counted, weights, order, xs, ys) | {"versions": max(counts)}

    def judge(self, case, args, outcome):
        S, (kind, M) = case.n, case.given
        for s, got in enumerate(outcome.results):
            self._order(s, got["log"], [word for word in args[s][1] if word[0] != "U"])
            if not got["xs"]:
                raise Wrong(f"stage {s}: an input was changed: micro-batches belong to the caller.")
        self._weights(args, [got["weights"] for got in outcome.results], int(kind == "late"))
        self._messages(outcome, S, M, args[0][2][0].nbytes)
        for s, got in enumerate(outcome.results):
            self._memory(s, got["most"], args[s][1])
            enough = LAYERS * 2 * (2 + in_flight(parse(" ".join(args[s][1]))))
            if outcome.time is not None and got["versions"] > enough:  # in a World
                raise Wrong(
                    f"stage {s}: the weights are right, but {got['versions']} tensors of a weight's shape are "
                    f"alive at once, and {enough} are plenty, with gradients. Is an old version kept after the "
                    "backward that needed it?"
                )
            if got["under_way"]:
                raise Wrong(
                    f"stage {s}: it returns while {got['under_way']} of its sends are under way. Wait for all."
                )

    def _weights(self, args: list[tuple], found: list[list[Tensor]], more: int) -> None:
        """more: updates by which gradients are later than in PipeDream's own list."""
        S = len(args)
        weights = [own[0] for own in args]
        xs = args[0][2]
        ys = args[-1][3]
        rate = args[0][4]
        want, looks = _expected(S, weights, xs, ys, rate, more)
        # the last stage first: what is wrong goes on to the stages before
        for s in reversed(range(S)):
            for i, (got, right) in enumerate(zip(found[s], want[s], strict=True)):
                if near(got, right):
                    continue
                if near(got, weights[s][i]):
                    hint = "They are as they were at the start: put the newest version into `part` at the end."
                else:
                    hint = next(
                        (text for text, rows in looks.items() if near(got, rows[s][i])),
                        "Is the backward of "
                        "each micro-batch made with the weights of its forward, and its gradient added to the "
                        "newest weights, once?",
                    )
                late = S - 1 - s + more
                raise Wrong(
                    f"stage {s}: the last weights of layer {i} are not those of gradients that are {late} "
                    f"update{'s' * (late != 1)} late. {hint}"
                )


def _expected(
    S: int, weights, xs: list[Tensor], ys: list[Tensor], rate: float, more: int
) -> tuple[list, dict[str, list]]:
    """The last weights of each stage, and those of some mistakes."""
    own = [S - 1 - s + more for s in range(S)]

    def ends(late=own, rate=rate, **kwargs) -> list:
        run = lambda used, x: (x @ used[0]).tanh() @ used[1].T
        return late_weights(run, weights, xs, ys, smooth_l1_loss, late, rate, **kwargs)

    early = "An update was made in B: make it when its U comes, which here is a forward later."
    looks = {early: ends(range(S)[::-1])} if more else {}
    looks |= {
        "Gradients add up over the micro-batches: each update has one micro-batch's.": ends(
            adds_up=True
        ),
        "All gradients are those of the weights at the start: update before the next forward.": ends(
            [len(xs)] * S
        ),
        "Each gradient was added to the weights that made it: it goes to the newest.": ends(
            onto_used=True
        ),
        f"The loss was divided by {len(xs)}: here every micro-batch has an update of its own.": ends(
            rate=rate / len(xs)
        ),
        "The weights climb: subtract the gradient.": ends(rate=-rate),
        "They are those of vertical sync: each stage uses its own newest.": ends([S - 1] * S),
        "They are those of a pipeline that never has two micro-batches in flight.": ends([0] * S),
    }
    return ends(), looks


def run_pipedream(yours) -> None:
    """`run_pipedream(down, up, part, words, xs, ys, loss_fn, rate)`: a stage trains; its last weights in `part`."""
    ask(RunPipeDream(), yours)
