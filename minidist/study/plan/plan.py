"""`plan`: the fastest grid that fits, what it costs, and why the others lose.

Every grid (`search`) gets its memory and its seconds; the fastest that fits wins. For each value that one decision
could have had (tensor 1, 2, 4…) the best grid with that value is its rival, and loses for a reason: too large by so
many bytes, or slower by so many seconds, most of them in one part of the step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from minidist.comm.cluster import Cluster
from minidist.study.memory.cost import mfu
from minidist.study.memory.grid import Grid
from minidist.study.memory.items import GB
from minidist.study.memory.states import PRECISIONS, known
from minidist.study.memory.transformer import Transformer
from minidist.study.plan.clusters import cluster_of, model_of
from minidist.study.plan.kernels import FUSED, Kernels
from minidist.study.plan.machine import Accelerator, Machine
from minidist.study.plan.search import Estimate, Planner, grids

DECISIONS = "tensor", "pipeline", "interleave", "zero", "recompute", "micro_batch"


@dataclass(frozen=True)
class Cost:
    """Of a run over `tokens` tokens: steps, days, GPU-hours, and money at `rate` a GPU-hour."""

    tokens: float
    steps: float
    days: float
    gpu_hours: float
    rate: float

    @property
    def money(self) -> float:
        return self.gpu_hours * self.rate


@dataclass(frozen=True)
class Rival:
    """The best estimate where a decision has another value, and why it loses."""

    decision: str
    value: int | str
    estimate: Estimate
    why: str


@dataclass(frozen=True, eq=False)
class Plan:
    """The best estimate for a model on a cluster; `estimates`: all of them, in the order of the search."""

    model: Transformer
    cluster: Cluster
    batch: int
    machine: Machine
    best: Estimate
    estimates: Sequence[Estimate]

    @property
    def gpus(self) -> int:
        return self.cluster.size

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.best.step.total

    @property
    def mfu(self) -> float:
        return mfu(self.model, self.batch, self.seconds, self.gpus, self.machine.peak)

    @property
    def tokens_per_second(self) -> float:
        return self.batch * self.model.context / self.seconds

    def cost(self, tokens: float, rate: float) -> Cost:
        """Of a run over `tokens` tokens, at `rate` a GPU-hour, whatever the currency. No stops are counted.

        Raises ValueError for less than one token, or a rate that is no amount of money.
        """
        if not (1 <= tokens < math.inf and 0 <= rate < math.inf):
            raise ValueError(
                f"a run has at least 1 token at a rate of at least 0, not {tokens:g} at {rate:g}"
            )
        seconds = tokens / self.tokens_per_second
        hours = seconds / 3600 * self.gpus
        return Cost(
            tokens, tokens / (self.batch * self.model.context), seconds / 86400, hours, rate
        )

    @cached_property
    def rivals(self) -> list[Rival]:
        """For each decision and each other value of it the best that there was, and why it loses."""
        found = []
        for decision in DECISIONS:
            chosen = getattr(self.best.grid, decision)
            by_value: dict = {}
            for one in self.estimates:
                value = getattr(one.grid, decision)
                if value != chosen and (value not in by_value or rank(one) < rank(by_value[value])):
                    by_value[value] = one
            ordered = sorted(
                by_value.items(), key=lambda item: 0 if isinstance(item[0], str) else item[0]
            )
            found += [Rival(decision, value, one, why(one, self.best)) for value, one in ordered]
        return found


def plan(
    model: Transformer | str,
    cluster: Cluster | str,
    batch: int,
    *,
    kernels: Kernels = FUSED,
    accelerator: Accelerator | None = None,
    precision: str = "bf16, fp32 gradients",
    dtype: torch.dtype = torch.bfloat16,
    algorithm: str = "hierarchical",
) -> Plan:
    """The fastest grid for a step of `batch` sequences: `plan("gpt3-175b", "h100:128x8", 1536)`.

    model, cluster: as they are, or by name (`MODELS`, `cluster_of`).  kernels: the program that trains.  accelerator:
    what the device reaches of its data sheet.  precision: as for `memory.states`.  algorithm: of collectives.
    Raises ValueError for a name that is unknown, for a batch that no grid divides, and where nothing fits: it says by
    how much the leanest grid is too large.
    """
    model = model_of(model) if isinstance(model, str) else model
    cluster = cluster_of(cluster) if isinstance(cluster, str) else cluster
    if cluster.device is None:
        raise ValueError(
            f"the cluster {cluster.name!r} has no device: what a step takes cannot be said"
        )
    if batch < 1:
        raise ValueError(f"a step has at least 1 sequence, not {batch}")
    known(precision, PRECISIONS, "precision")
    machine = Machine.of(cluster.device, accelerator, dtype, kernels.launch)
    planner = Planner(model, cluster, kernels, machine, algorithm)
    base = Grid(dropout=kernels.explicit, precision=precision)
    found = [planner.estimate(grid) for grid in grids(model, cluster, batch, base)]
    if not found:
        raise ValueError(
            f"no grid of {cluster.size} ranks divides {batch} sequences and {model.layers} layers"
        )
    best = min(found, key=rank)
    if best.over:
        raise ValueError(
            f"nothing fits: the leanest grid, with {best.total / GB:.1f} GB on a rank, "
            f"is {best.over / GB:.1f} GB too large for {best.capacity / GB:.0f}"
        )
    return Plan(model, cluster, batch, machine, best, found)


def rank(one: Estimate) -> tuple[int, float]:
    """The smaller the better: what does not fit by how much it is too large, then seconds."""
    return one.over, one.step.total


def why(one: Estimate, best: Estimate) -> str:
    """Why an estimate loses against the best."""
    if one.over:
        name, nbytes = max(one.memory.bytes.items(), key=lambda item: item[1])
        return f"too large by {one.over / GB:.1f} GB: {name} {nbytes / GB:.1f} GB"
    more = one.step.total - best.step.total
    losses = {name: s - best.step.parts[name] for name, s in one.step.parts.items()}
    name, most = max(losses.items(), key=lambda item: item[1])
    return (
        f"slower by {short(more)}: {name} +{short(most)}"
        if more > 0
        else "as fast, and found later"
    )


def short(seconds: float) -> str:
    """Seconds, or milliseconds where they are few."""
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms"
