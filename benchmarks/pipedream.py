"""How PipeDream's rules learn: an MLP of eight layers on eight stages, the digits, five seeds.

    python -m benchmarks.pipedream [--quick]

Every rule gets the same micro-batches, the same initial weights, and SGD at the same rate: a large one, and for those
that update after every micro-batch also a small one. Flush: 1F1B, an update for S micro-batches, like 2BW. Printed is
the loss on all training images afterwards (ln 10 = 2.30 is to know nothing), and how many test images are right, in %.

The five seeds are five models side by side in every stage, which share nothing but the time they take; all runs on
real stages in a World.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.options import options
from minidist.comm import World
from minidist.models import generator
from minidist.parallel.pipedream import PipeDream, PipeDream2BW
from minidist.parallel.pipeline import Pipeline
from minidist.tasks import Task, digits

RULES = ("flush", "stash", "vertical", "2bw", "no stash")
RUNS = {0.07: RULES, 0.02: ("stash", "vertical", "no stash")}  # by rate
WIDTHS = [64] * 8 + [10]  # eight layers
BATCH, SEEDS = 32, (0, 1, 2, 3, 4)


class Layer(nn.Module):
    """Layer `number` of several models, one for each seed: (seeds, B, inputs) to (seeds, B, outputs), then ReLU.

    Initial weights: He et al. 2015, section 2.2.
    """

    def __init__(self, number: int, seeds: tuple[int, ...]):
        super().__init__()
        inputs, outputs = WIDTHS[number : number + 2]
        drawn = [
            torch.randn(inputs, outputs, generator=generator(seed, f"layer {number}"))
            for seed in seeds
        ]
        self.weight = nn.Parameter(torch.stack(drawn) * math.sqrt(2 / inputs))
        self.bias = nn.Parameter(torch.zeros(len(seeds), 1, outputs))
        self.last = number == len(WIDTHS) - 2

    def forward(self, x: Tensor) -> Tensor:
        x = torch.baddbmm(self.bias, x, self.weight)
        return x if self.last else x.relu()


class Outcome(NamedTuple):
    """What became of the models, one number for each seed. losses: of every micro-batch, (M, seeds)."""

    loss: list[float]
    right: list[float]
    losses: Tensor

    @property
    def worst(self) -> float:
        """The largest loss; a model whose weights are not numbers any more has an infinite one."""
        return max(self.loss)


def batches(task: Task, M: int, seeds: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
    """M micro-batches of BATCH images for each seed: (seeds, B, 64) and (seeds, B)."""
    chosen = [
        torch.randint(len(task.x), (M, BATCH), generator=generator(seed, "batches"))
        for seed in seeds
    ]
    return [(task.x[own], task.y[own]) for own in torch.stack(chosen, 1)]


def each_loss(logits: Tensor, y: Tensor) -> Tensor:
    """The mean loss of each model."""
    return nn.functional.cross_entropy(logits.permute(1, 2, 0), y.T, reduction="none").mean(0)


def train(comm, rule: str, rate: float, data: list, seeds: tuple[int, ...], m: int):
    """The program: (this stage's weights, losses of the micro-batches on the last stage)."""
    first, end = (r * (len(WIDTHS) - 1) // comm.size for r in (comm.rank, comm.rank + 1))
    part = nn.Sequential(*(Layer(number, seeds) for number in range(first, end)))
    losses = []

    def loss_fn(logits: Tensor, y: Tensor) -> Tensor:
        losses.append(each_loss(logits, y))
        return losses[-1].sum()  # their gradients do not meet

    def sgd(parameters) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=rate)

    if rule == "flush":
        with_flush(Pipeline(part, comm, loss_fn=loss_fn), sgd(part.parameters()), data, m)
    elif rule == "2bw":
        PipeDream2BW(part, comm, sgd, loss_fn, m=m).run(data)
    else:
        PipeDream(
            part, comm, sgd, loss_fn, vertical=rule == "vertical", wrong_no_stash=rule == "no stash"
        ).run(data)
    return [layer.state_dict() for layer in part], [loss.detach() for loss in losses]


def with_flush(pipeline: Pipeline, optimizer: torch.optim.Optimizer, data: list, m: int) -> None:
    """1F1B, emptied for every update."""
    for group in range(0, len(data), m):
        x, y = zip(*data[group : group + m], strict=True)
        pipeline.step(m, list(x), list(y))
        optimizer.step()
        optimizer.zero_grad()


def converge(
    rule: str, rate: float, M: int = 600, S: int = 8, seeds: tuple[int, ...] = SEEDS
) -> Outcome:
    """Train by a rule of RULES, on S stages and M micro-batches (with flush and 2BW a multiple of S)."""
    task = digits(torch.float32)
    data = batches(task, M, seeds)
    results = World(S).run(train, rule, rate, data, seeds, S)
    layers = [Layer(number, seeds) for number in range(len(WIDTHS) - 1)]
    for layer, state in zip(
        layers, (state for states, _ in results for state in states), strict=True
    ):
        layer.load_state_dict(state)
    whole = nn.Sequential(*layers)
    with torch.no_grad():
        loss = each_loss(whole(task.x.expand(len(seeds), -1, -1)), task.y.expand(len(seeds), -1))
        right = (
            (whole(task.test_x.expand(len(seeds), -1, -1)).argmax(-1) == task.test_y)
            .float()
            .mean(1)
        )
    return Outcome(loss.nan_to_num(math.inf).tolist(), right.tolist(), torch.stack(results[-1][1]))


def main() -> None:
    quick = options(__doc__, quick="two seeds, and the large rate only").quick
    torch.set_num_threads(1)
    for rate, rules in list(RUNS.items())[: 1 if quick else None]:
        print(f"\nrate {rate}: loss of each seed | % right", flush=True)
        for rule in rules:
            start = time.perf_counter()
            outcome = converge(rule, rate, seeds=SEEDS[:2] if quick else SEEDS)
            print(
                f"  {rule:9s}"
                + "".join(f"{loss:9.3f}" for loss in outcome.loss)
                + "  |"
                + "".join(f"{100 * right:6.1f}" for right in outcome.right)
                + f"   {time.perf_counter() - start:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
