"""What a run will take, before you run it: the fastest grid that fits, what it costs, and why the others lose.

plan   every grid of a model on a cluster, weighed by `step.Planner`
text, picture, memory_table, time_table, cost_table, rivals_table   for people; the command for the shell
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import gcd
from typing import Any, NamedTuple

import torch

from minidist.arguments import whole
from minidist.comm.cluster import Cluster
from minidist.study.catalog import MODELS, cluster_of, model_of
from minidist.study.charts import Table, stacked, table
from minidist.study.picture import Picture
from minidist.study.predict import (
    GB,
    RECOMPUTE,
    Grid,
    Transformer,
    chunks,
    divisors,
    flops,
    known,
    micro_batches,
    utilization,
)
from minidist.study.runs import TABLES, Errors, errors
from minidist.study.step import (
    FUSED,
    Estimate,
    Machine,
    Planner,
)

# ------------------------------------------------------------
# Every grid that fits a cluster and a batch.
#
#     tensor      within a node: its all-reduces are four a layer
#     pipeline    at most a stage a layer; interleaved where the chunks come out even and the stages divide M
#     context     as many as one allows, of which each has two chunks of a sequence's tokens, by a ring
#     data        what is left of the ranks; it divides the batch
#     expert      of a model with experts: data ranks that share them out evenly, with ZeRO 0 to 2
#     ZeRO        0 to 3; 2 and 3 reduce, and gather, for every micro-batch
#     replicas    1, or hybrid sharding: ZeRO's shards within a node, and a copy of all of them in every other
#     recompute   none, full; selective, too, where attention is explicit
#     bits        16; 8, too, where asked for: what it does to a loss no planner knows
#
# The sequence is split wherever tensor is above 1.


PRECISION = "bf16, fp32 gradients"


class Search(NamedTuple):
    """What grids are looked for. context_ranks: the most that share the tokens of a sequence."""

    model: Transformer
    cluster: Cluster
    batch: int
    attention: str = "fused"
    offload: bool = False
    context_ranks: int = 1
    fp8: bool = False

    @property
    def node(self) -> int:
        """Ranks of a node."""
        return self.cluster.ranks * self.cluster.devices


Chosen = dict[str, Any]


class Axis(NamedTuple):
    """A decision: a field of `Grid`.

    title: how tables name one of its values.  values: all that it may be, by what the axes before it have chosen, in the
    order of the search.  splits: that many ranks have a part of the model each; what is left is data-parallel.
    compared: the property of `Grid` that tells rivals apart, where that is not the field.
    """

    name: str
    title: str
    values: Callable[[Search, Chosen], Iterable[Any]]
    splits: bool = False
    compared: str = ""


def tensors(search: Search, chosen: Chosen) -> list[int]:
    model = search.model
    whole = gcd(model.heads, model.kv_heads or model.heads, model.width)
    return [t for t in divisors(search.node) if whole % t == 0]


def context_sizes(search: Search, chosen: Chosen) -> list[int]:
    """Those of which each rank has two chunks of the tokens; one alone where attention is explicit, and with experts."""
    rings = search.attention == "fused" and not search.model.experts
    most = search.context_ranks if rings else 1
    sizes = [c for c in divisors(data_ranks(search, chosen)) if c <= most]
    return [c for c in sizes if c == 1 or search.model.context % (2 * c) == 0]


def pipelines(search: Search, chosen: Chosen) -> list[int]:
    left = data_ranks(search, chosen)
    stages = [p for p in divisors(left) if p <= search.model.layers]
    return [p for p in stages if search.batch % (left // p) == 0]


def micro_batch_sizes(search: Search, chosen: Chosen) -> list[int]:
    return [b for b, _ in micro_batches(search.batch // data_ranks(search, chosen))]


def interleaves(search: Search, chosen: Chosen) -> list[int]:
    return chunks(search.model, chosen["pipeline"], micro_batch_count(search, chosen))


def expert_ranks(search: Search, chosen: Chosen) -> list[int]:
    """Data ranks that share out the experts, which they divide evenly."""
    experts = search.model.experts or 1
    return [e for e in divisors(data_ranks(search, chosen)) if experts % e == 0]


def zero_stages(search: Search, chosen: Chosen) -> Iterable[int]:
    alone = data_ranks(search, chosen) * chosen["context_ranks"] == 1
    if alone:
        return range(1)
    return range(3 if chosen["expert"] > 1 else 4)


def replica_counts(search: Search, chosen: Chosen) -> list[int]:
    """One, or as many as there are where the shards of each fill what tensor parallelism leaves of a node."""
    holders = data_ranks(search, chosen) * chosen["context_ranks"]
    shards = search.node // chosen["tensor"]
    hybrid = 1 < shards < holders and holders % shards == 0
    if hybrid and chosen["zero"] and chosen["expert"] == 1:
        return [1, holders // shards]
    return [1]


def recomputations(search: Search, chosen: Chosen) -> list[str]:
    """Selective, too, where there are scores to recompute."""
    return [how for how in RECOMPUTE if search.attention == "explicit" or how != "selective"]


def product_bits(search: Search, chosen: Chosen) -> list[int]:
    return [16, 8] if search.fp8 and not search.model.experts else [16]


AXES = (
    Axis("tensor", "tensor {}", tensors, splits=True),
    Axis("context_ranks", "context {}", context_sizes, splits=True),
    Axis("pipeline", "pipeline {}", pipelines, splits=True),
    Axis("micro_batch", "micro-batches of {}", micro_batch_sizes),
    Axis("interleave", "{} chunks", interleaves),
    Axis("expert", "experts over {}", expert_ranks),
    Axis("zero", "ZeRO {}", zero_stages),
    Axis("replicas", "sharded {}", replica_counts, compared="sharding"),
    Axis("recompute", "recompute {}", recomputations),
    Axis("bits", "products in {} bits", product_bits),
)
"""Another way to spread or to shorten a step joins here, and in what `per_rank` and `Planner.step` say of it."""


def data_ranks(search: Search, chosen: Chosen) -> int:
    """Ranks that are left by the axes that split the model, of those that have been chosen."""
    split = [chosen[axis.name] for axis in AXES if axis.splits and axis.name in chosen]
    return search.cluster.size // math.prod(split)


def micro_batch_count(search: Search, chosen: Chosen) -> int:
    return search.batch // data_ranks(search, chosen) // chosen["micro_batch"]


def grids(search: Search) -> Iterator[Grid]:
    """All grids for a step: every way through the axes, and what follows from it."""
    ways: list[Chosen] = [{}]
    for axis in AXES:
        ways = [way | {axis.name: value} for way in ways for value in axis.values(search, way)]
    for chosen in ways:
        tensor = chosen["tensor"]
        yield Grid(
            **chosen,
            data=data_ranks(search, chosen),
            micro_batches=micro_batch_count(search, chosen),
            sequence=tensor > 1 and search.model.context % (tensor * chosen["context_ranks"]) == 0,
            dropout=False,
            precision=PRECISION,
            attention=search.attention,
            offload=search.offload,
        )


# ------------------------------------------------------------
# `plan`: the fastest grid that fits, what it costs, and why the others lose.
#
# Every grid (`grids`) gets its memory and its seconds; the fastest that fits wins. For each value that one decision
# could have had (tensor 1, 2, 4…) the best grid with that value is its rival, and loses for a reason: too large by so
# many bytes, or slower by so many seconds, most of them in one part of the step.
#
# A rank may have what its device has, less what the libraries and holes between blocks take: `reserved`.


DECISIONS = {axis.compared or axis.name: axis.title for axis in AXES}


class Cost(NamedTuple):
    """Of a run: steps, days, GPU-hours, and money."""

    steps: float
    days: float
    gpu_hours: float
    money: float


class Rival(NamedTuple):
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
    def seconds(self) -> float:
        """Of a step."""
        return self.best.step.total

    @property
    def mfu(self) -> float:
        needed = flops(self.model, self.batch)
        return utilization(needed, self.seconds, self.cluster.size, self.machine.peak)

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
        hours = seconds / 3600 * self.cluster.size
        return Cost(seconds / self.seconds, seconds / 86400, hours, hours * rate)

    @cached_property
    def rivals(self) -> list[Rival]:
        """For each decision and each other value of it the best that there was, and why it loses."""
        rivals = []
        for decision in DECISIONS:
            best_with: dict[int | str, Estimate] = {}
            for estimate in sorted(self.estimates, key=rank):
                best_with.setdefault(getattr(estimate.grid, decision), estimate)
            del best_with[getattr(self.best.grid, decision)]
            values = RECOMPUTE if decision == "recompute" else sorted(best_with)
            for value in [value for value in values if value in best_with]:
                estimate = best_with[value]
                rivals.append(Rival(decision, value, estimate, why(estimate, self.best)))
        return rivals


def plan(
    model: Transformer | str,
    cluster: Cluster | str,
    batch: int,
    context: int | None = None,
    offload: bool = False,
    attention: str = "fused",
    context_ranks: int = 1,
    fp8: bool = False,
) -> Plan:
    """The fastest grid for a step of `batch` sequences, trained as today: `plan("gpt3-175b", "h100:128x8", 1536)`.

    model, cluster: objects, or names (`MODELS`, `cluster_of`). context: tokens of a sequence; unless given, the model's
    own. offload: the optimizer's states lie in the memory of the hosts, which also do the steps. attention: "fused", or
    "explicit", with scores in memory. context_ranks: at most this many ranks share the tokens of a sequence, by ring
    attention. fp8: the layers' products may be in 8 bits.
    Raises ValueError for an unknown name, for a batch that no grid divides, for less than 1 token, and if nothing fits:
    the message says by how much the leanest grid is too large.

    >>> from minidist.study.plan import plan
    >>> found = plan("gpt2-1.5b", "h100:1x8", 64)
    >>> grid = found.best.grid
    >>> grid.data, grid.tensor, grid.pipeline, grid.zero, grid.micro_batch
    (8, 1, 1, 3, 8)
    >>> found.best.total < 80e9, found.mfu > 0.3
    (True, True)
    """
    model = known(model, MODELS, "model") if isinstance(model, str) else model
    if context is not None:
        model = replace(model, context=context)
    cluster = cluster_of(cluster) if isinstance(cluster, str) else cluster
    if cluster.device is None:
        raise ValueError(
            f"the cluster {cluster.name!r} has no device: what a step takes cannot be said"
        )
    if batch < 1:
        raise ValueError(f"a step has at least 1 sequence, not {batch}")
    machine = Machine(cluster.device)
    planner = Planner(model, cluster, FUSED, machine)
    whole(context_ranks, "a sequence has at least 1 context rank", 1)
    if fp8:
        cluster.device.peak(torch.float8_e4m3fn)
    search = Search(model, cluster, batch, attention, offload, context_ranks, fp8)
    estimates = [planner.estimate(grid) for grid in grids(search)]
    if not estimates:
        raise ValueError(
            f"no grid of {cluster.size} ranks divides {batch} sequences and {model.layers} layers"
        )
    best = min(estimates, key=rank)
    if best.over:
        raise ValueError(f"nothing fits: the leanest grid, {too_large(best)}")
    return Plan(model, cluster, batch, machine, best, estimates)


def too_large(estimate: Estimate) -> str:
    """By how much, on a device or on a host."""
    if estimate.over_host and estimate.host_capacity is not None:
        return (
            f"with {estimate.host / GB:.1f} GB on the host of a node, is {estimate.over_host / GB:.1f} GB "
            f"too large for its {estimate.host_capacity / GB:.0f}"
        )
    return (
        f"with {estimate.total / GB:.1f} GB on a rank, is {estimate.over / GB:.1f} GB "
        f"too large for {estimate.capacity / GB:.0f}"
    )


def rank(estimate: Estimate) -> tuple[int, float]:
    """The smaller the better: what does not fit by how much it is too large, then seconds."""
    return estimate.over, estimate.step.total


def why(estimate: Estimate, best: Estimate) -> str:
    """Why an estimate loses against the best."""
    if estimate.over_host:
        return f"too large by {estimate.over_host / GB:.1f} GB for the host of a node"
    if estimate.over:
        name, nbytes = max(estimate.memory.bytes.items(), key=lambda item: item[1])
        return f"too large by {estimate.over / GB:.1f} GB: {name} {nbytes / GB:.1f} GB"
    more = estimate.step.total - best.step.total
    if more <= 0:
        return "as fast, and found later"
    losses = {name: s - best.step.parts[name] for name, s in estimate.step.parts.items()}
    name = max(losses, key=losses.__getitem__)
    return f"slower by {short(more)}: {name} +{short(losses[name])}"


def short(seconds: float) -> str:
    """Seconds, or milliseconds where they are few."""
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms"


# ------------------------------------------------------------
# A plan for people: tables of the grid, its memory, its time, its cost and its rivals, and a picture.


def named(grid: Grid) -> str:
    """`data 64, tensor 8, pipeline 2 × 4 chunks, ZeRO 1, recompute selective, 96 micro-batches of 2`

    With hybrid sharding `ZeRO 3 in 8 replicas`, and `data 64 (experts over 8)` where they are shared out.
    """
    e = f" (experts over {grid.expert})" * (grid.expert > 1)
    v = f" × {grid.interleave} chunks" * (grid.interleave > 1)
    r = f" in {grid.replicas} replicas" * (grid.replicas > 1)
    c = f"context {grid.context_ranks}, " * (grid.context_ranks > 1)
    return (
        f"data {grid.data}{e}, {c}tensor {grid.tensor}, pipeline {grid.pipeline}{v}, ZeRO {grid.zero}{r}, "
        f"recompute {grid.recompute}, {grid.micro_batches} micro-batches of {grid.micro_batch}"
        + ", products in 8 bits"
        * (grid.bits == 8)
    )


def memory_table(plan: Plan) -> Table:
    """Bytes of the fullest rank, by category, and what is left."""
    best = plan.best
    items = best.memory.bytes | {
        "messages": best.messages,
        "reserved": best.reserved,
        "left": best.capacity - best.total,
    }
    rows = [(name, n / GB, f"{n / best.capacity:.0%}") for name, n in items.items() if n]
    if best.host:
        part = best.host / best.host_capacity if best.host_capacity else None
        rows.append(
            ("on the host of a node", best.host / GB, "" if part is None else f"{part:.0%} of it")
        )
    return table(rows, ["memory of the fullest rank", "GB", "of the device"])


def time_table(plan: Plan) -> Table:
    """Seconds of a step, by part."""
    step = plan.best.step
    parts = step.parts | {"step": step.total}
    rows = [
        (name, s, "100%" if name == "step" else f"{s / step.total:.1%}")
        for name, s in parts.items()
    ]
    return table(rows, ["time", "seconds", "of the step"])


def errors_alike(plan: Plan) -> tuple[Errors, Errors] | None:
    """How far the planner is off on published runs of the plan's kind, in time and in memory. None where nobody has
    published a run on its chip.

    What shards gradients or parameters, and splits neither layers nor stages, is compared with FSDP's runs; anything
    else with Megatron's; products in 8 bits with the two runs of FSDP that have them.
    """
    chips = [chip for chip in ALIKE if plan.machine.device.name.startswith(chip)]
    if not chips:
        return None
    grid = plan.best.grid
    whole = grid.tensor == grid.pipeline == 1 and grid.zero >= 2
    names = ALIKE[chips[0]][whole] if grid.bits == 16 else ("llmfoundry_fp8",)
    runs = [run for name in names for run in TABLES[name]()]
    return Errors(" and ".join(names), runs), errors("bloom")


ALIKE = {
    "A100": (("bloom", "megatron", "recompute"), ("llmfoundry_a100",)),
    "H100": (("megatron_h100",), ("llmfoundry_h100",)),
}
"""Tables of runs by chip: on grids, and fully sharded."""


def doubt(plan: Plan) -> str:
    """How far the figures may be off, in words."""
    found = errors_alike(plan)
    if found is None:
        name = plan.machine.device.name
        return f"no run on {name} was published, so nothing says how far these figures may be off"
    times, memory = found
    return (
        f"on {len(times.time)} published runs of this kind ({times.name}) the planner's seconds are off by "
        f"{average(times.time):.1%} in the mean, {largest_error(times.time):+.1%} at most; its memory, on "
        f"{len(memory.memory)} runs of {memory.name}, by {average(memory.memory):.1%}, "
        f"{largest_error(memory.memory):+.1%} at most"
    )


def average(found: Sequence[float]) -> float:
    return sum(map(abs, found)) / len(found)


def largest_error(found: Sequence[float]) -> float:
    return max(found, key=abs)


def cost_table(plan: Plan, tokens: float, rate: float | None = None) -> Table:
    """What the run costs. `rate`: money a GPU-hour, if there is a price."""
    cost = plan.cost(tokens, rate or 0.0)
    rows = [
        ("tokens", f"{tokens:,.0f}"),
        ("tokens a second", f"{plan.tokens_per_second:,.0f}"),
        ("steps", f"{cost.steps:,.0f}"),
        ("days", f"{cost.days:.1f}"),
        ("GPU-hours", f"{cost.gpu_hours:,.0f}"),
        ("MFU", f"{plan.mfu:.1%}"),
    ]
    if rate is not None:
        rows.append((f"money, at {rate:g} a GPU-hour", f"{cost.money:,.0f}"))
    return table(rows, ["the run", ""])


def rivals_table(plan: Plan) -> Table:
    """The best grid for each other value of a decision, and why it loses."""
    rows = []
    for decision, value, estimate, reason in plan.rivals:
        choice = DECISIONS[decision].format(value)
        rows.append((choice, named(estimate.grid), estimate.step.total, reason))
    return table(rows, ["with", "the best grid", "seconds", "loses"])


def text(plan: Plan, tokens: float, rate: float | None = None) -> str:
    """All of it."""
    head = (
        f"{plan.cluster.summary()}\nbatch {plan.batch:,} × {plan.model.context:,} tokens, "
        f"{len(plan.estimates):,} grids; η = {plan.machine.device.efficiency:g} of the data sheet\n"
        f"\n{named(plan.best.grid)}: {plan.seconds:.2f} s a step, MFU {plan.mfu:.1%}"
    )
    tables = (
        memory_table(plan),
        time_table(plan),
        cost_table(plan, tokens, rate),
        rivals_table(plan),
    )
    return "\n\n".join([head, doubt(plan), *(part.text for part in tables)])


def facts(plan: Plan, tokens: float, rate: float | None = None) -> dict[str, Any]:
    """The same as plain values, for a program: seconds, bytes, and each rival with why it loses."""
    cost = plan.cost(tokens, rate or 0.0)
    found = errors_alike(plan)
    best = plan.best
    return {
        "model": asdict(plan.model),
        "cluster": plan.cluster.name,
        "ranks": plan.cluster.size,
        "batch": plan.batch,
        "grid": asdict(best.grid),
        "seconds": {**best.step.parts, "step": plan.seconds},
        "bytes": {**best.memory.bytes, "messages": best.messages, "reserved": best.reserved},
        "capacity": best.capacity,
        "host_bytes": best.host,
        "mfu": plan.mfu,
        "tokens": tokens,
        "tokens_a_second": plan.tokens_per_second,
        "steps": cost.steps,
        "days": cost.days,
        "gpu_hours": cost.gpu_hours,
        "money": None if rate is None else cost.money,
        "errors": found
        and {
            "seconds": {"runs": found[0].name, "mean": average(found[0].time)},
            "bytes": {"runs": found[1].name, "mean": average(found[1].memory)},
        },
        "rivals": [
            {
                "decision": rival.decision,
                "value": rival.value,
                "grid": asdict(rival.estimate.grid),
                "seconds": rival.estimate.step.total,
                "loses": rival.why,
            }
            for rival in plan.rivals
        ],
    }


def picture(plan: Plan) -> Picture:
    """Seconds of a step by part: the best grid's, and those of its eight fastest rivals that fit."""
    fit = {r.estimate.grid: r.estimate for r in plan.rivals if not r.estimate.over}
    fastest = sorted(fit.values(), key=rank)[:8]
    bars = {brief(estimate.grid): estimate.step.parts for estimate in [plan.best, *fastest]}
    return stacked(bars, title="A step, by part", unit="s")


def brief(grid: Grid) -> str:
    """`64·8·2×4 z1 selective b2`: data · tensor · pipeline × chunks, ZeRO, recomputation, micro-batch; e8: expert ranks."""
    e = f"e{grid.expert}" * (grid.expert > 1)
    v = f"×{grid.interleave}" * (grid.interleave > 1)
    r = f"/{grid.replicas}" * (grid.replicas > 1)
    c = f"·c{grid.context_ranks}" * (grid.context_ranks > 1)
    return f"{grid.data}{e}{c}·{grid.tensor}·{grid.pipeline}{v} z{grid.zero}{r} {grid.recompute} b{grid.micro_batch}"


# ------------------------------------------------------------
# `python -m minidist.study.plan --model gpt3-175b --cluster h100:128x8 --batch 1536`


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a plan. 2 for what cannot be planned.

    A model has a name, numbers, or a name and other numbers; a cluster a word or a file.
    """
    parser = argparse.ArgumentParser(prog="python -m minidist.study.plan", description=main.__doc__)
    option = parser.add_argument
    option("--model", help=f"one of {', '.join(MODELS)}; gpt3-175b without any number")
    numbers = {
        "--layers": "",
        "--hidden": "H",
        "--heads": "of queries",
        "--kv-heads": "of keys and values",
        "--experts": "MLPs in every second layer",
        "--top-k": "experts of a token",
        "--ffn": "width of the MLP, 4H if not given",
        "--vocab": "words",
        "--seq": "tokens of a sequence",
    }
    for name, words in numbers.items():
        option(name, type=int, help=words)
    option("--gated", action="store_true", default=None, help="the MLP has a third matrix (SwiGLU)")
    option("--untied", action="store_true", help="the projection to words has weights of its own")
    option("--cluster", default="h100:128x8", help="device:nodes×devices, or a .toml file")
    option("--batch", type=int, default=1536, help="sequences of a step")
    option("--attention", default="fused", help="fused, or explicit: scores are in memory")
    option("--context-ranks", type=int, default=1, help="at most so many share a sequence")
    option("--offload", action="store_true", help="the optimizer's states lie with the hosts")
    option("--fp8", action="store_true", help="the layers' products may be in 8 bits")
    option("--tokens", type=float, default=300e9, help="of the whole run")
    option("--rate", type=float, help="money a GPU-hour")
    option("--json", action="store_true", help="print values for a program")
    option("--picture", metavar="FILE.png", help="write the steps of the fastest grids, by part")
    asked = parser.parse_args(arguments)
    sizes = {
        "layers": asked.layers,
        "hidden": asked.hidden,
        "heads": asked.heads,
        "kv_heads": asked.kv_heads,
        "experts": asked.experts,
        "top_k": asked.top_k,
        "ffn": asked.ffn,
        "vocab": asked.vocab,
        "context": asked.seq,
        "gated": asked.gated,
        "tied": False if asked.untied else None,
    }
    alone = all(value is None for value in sizes.values())
    try:
        model = model_of(asked.model or ("gpt3-175b" if alone else None), **sizes)
        found = plan(
            model,
            asked.cluster,
            asked.batch,
            offload=asked.offload,
            attention=asked.attention,
            context_ranks=asked.context_ranks,
            fp8=asked.fp8,
        )
        if asked.picture:
            picture(found).save(asked.picture)
        if asked.json:
            print(json.dumps(facts(found, asked.tokens, asked.rate), indent=1))
        else:
            print(text(found, asked.tokens, asked.rate))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
