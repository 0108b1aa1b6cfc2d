"""Steps of training, simulated rank by rank on meta tensors, beside what the planner says and what was published.

    python -m benchmarks.simulate gpt3 [--micro-batches 24] [--steps 2]
    python -m benchmarks.simulate small --layers 8 --data 4 --recompute full

Every rank runs the package's own trainer (`parallelize`) in a World on the modelled cluster: nothing is taken from a
formula, no rank stands for another. All ranks begin a step together; its seconds are those until the last one has ended.
The planner (`study.step`, kernels EAGER, the package's own layers) is asked for the same grid and as many micro-batches.

A whole step of a large grid takes hours to simulate. With fewer micro-batches, at least as many as stages, nothing but
their number changes: the same memory, the same pipeline that fills and drains. So such a step is held against the
planner's of as many micro-batches; and the whole step is the planner's, as much longer or shorter as it was there.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from minidist.collectives import barrier
from minidist.comm import Cluster, World
from minidist.comm.mesh import Grid as Places
from minidist.comm.mesh import Mesh
from minidist.comm.trace import Timeline
from minidist.models import TransformerLayer, gpt
from minidist.parallel.schedules import interleaved, one_f_one_b
from minidist.parallelize import parallelize
from minidist.study.catalog import MODELS, cluster_of
from minidist.study.charts import Table, table
from minidist.study.plan import named
from minidist.study.predict import GB, Grid, Transformer, step_bytes
from minidist.study.step import EAGER, Estimate, Machine, Planner

# ------------------------------------------------------------
# What is simulated.


@dataclass(frozen=True)
class Case:
    """A model on a grid of a cluster. grid: with the micro-batches of a whole step.  published: its seconds, if known,
    and where."""

    model: Transformer
    cluster: str
    grid: Grid
    published: float | None = None
    source: str = ""


LOW = dict(precision="bf16", dropout=False, attention="fused")

CASES = {
    "small": Case(
        Transformer(4, 4096, 32, 8192, 1024), "h100:2x4", Grid(2, 2, 2, 1, micro_batches=4, **LOW)
    ),
    "gpt3": Case(
        MODELS["gpt3-175b"],
        "h100:128x8",
        Grid(8, 8, 16, 1, micro_batch=1, micro_batches=192, **LOW),
    ),
    "sc21": Case(
        Transformer(80, 12288, 96, 51200, 2048),
        "a100:192x8",
        Grid(
            24,
            8,
            8,
            micro_batch=2,
            micro_batches=48,
            recompute="full",
            interleave=2,
            **(LOW | {"attention": "explicit"}),
        ),
        24.8,
        "Narayanan et al. 2021, Table 1",
    ),
}
"""small: seconds to simulate.  gpt3: 1,536 sequences a step, ZeRO 1.  sc21: 145.6 B parameters, 2,304 sequences, no ZeRO;
its micro-batch and its chunks a stage, which the paper does not say, are those that the planner finds fastest."""


# ------------------------------------------------------------
# What a rank does.


class Times(NamedTuple):
    """Of a step, on a rank: when it began, when gradients were averaged, when it ended."""

    start: float
    averaged: float
    end: float


def train(comm, model: Transformer, grid: Grid, steps: int = 2) -> list[Times]:
    """Train `model` on the ranks of `comm`, `grid` over them. Returns the times of each step, virtual seconds.

    All ranks begin a step together, after a barrier.
    """
    others = {}
    if grid.expert > 1:
        others["ep"] = grid.expert
    if grid.context_ranks > 1:
        others["cp"] = grid.context_ranks
    data = grid.data // grid.expert
    mesh = Mesh(comm, dp=data, pp=grid.pipeline, tp=grid.tensor, **others)
    routing = dict(experts=model.experts, top_k=model.top_k) if model.experts else {}
    masters = grid.precision == "bf16"
    # the form of the model is `parallelize`'s alone, which lets go of it
    engine = parallelize(
        gpt(
            model.layers,
            model.hidden,
            model.heads,
            model.vocab,
            model.context,
            tied=model.tied,
            attention="sdpa" if grid.attention == "fused" else "explicit",
            device="meta",
            dtype=torch.float32 if masters else torch.bfloat16,
            **routing,
        ),
        mesh,
        partial(adamw, lr=1e-3, foreach=True),
        micro_batches=grid.micro_batches,
        schedule=interleaved if grid.interleave > 1 else one_f_one_b,
        chunks=grid.interleave,
        sequence_parallel=grid.sequence,
        recompute=grid.recompute,
        amp="O2" if masters else "O0",
        zero=grid.zero,
        cost=layers_alone,
    )
    sequences = grid.micro_batch * grid.micro_batches
    batch = torch.empty(sequences, model.context, dtype=torch.long, device="meta")
    times = []
    for _ in range(steps):
        barrier(comm)
        start = comm.now()
        engine.backward(batch, batch)
        averaged = comm.now()
        engine.update()
        times.append(Times(start, averaged, comm.now()))
    barrier(comm)
    return times


def adamw(params, **words) -> torch.optim.AdamW:
    """PyTorch's, with its moments from the start: it makes them in its first step, and all others begin with them."""
    optimizer = torch.optim.AdamW(params, **words)
    for group in optimizer.param_groups:
        for p in group["params"]:
            moments = {name: torch.zeros_like(p) for name in ("exp_avg", "exp_avg_sq")}
            optimizer.state[p] = {"step": torch.zeros(()), **moments}
    return optimizer


def layers_alone(parts) -> list[bool]:
    """The cost of a model's parts: only its layers count, so each stage has as many."""
    return [isinstance(part, TransformerLayer) for part in parts]


# ------------------------------------------------------------
# What is seen of a run, and beside it what the planner says.
#
# Memory is followed on the first data- and tensor-parallel rank of each stage, which has the most of its stage: where a
# division leaves a rest, the first have one more.


AXES = ("tensor", "pipeline", "data")
AXIS_OF = dict(zip(("tp", "pp", "dp"), AXES, strict=True))


class Seen(NamedTuple):
    """Of a simulation.

    seconds: of each step.  memory: bytes of the fullest rank at its peak, until gradients are averaged; updating: while
    the optimizer steps.  sent: bytes of the last step, by axis.  messages: of all steps.  wall, cpu: seconds that it
    took.  resident: bytes of this process at its peak.
    """

    seconds: list[float]
    memory: int
    updating: int
    sent: dict[str, int]
    messages: int
    wall: float
    cpu: float
    resident: int


def simulate(model: Transformer, cluster: Cluster, grid: Grid, steps: int = 2) -> Seen:
    """Run so many steps on all ranks of the grid. ValueError where it does not fit the cluster, or the model the grid."""
    places = Places(dp=grid.data, pp=grid.pipeline, tp=grid.tensor)
    places.fits(cluster.size)
    stages = [places.rank(pp=stage) for stage in range(grid.pipeline)]
    world = World(grid.ranks, cluster=cluster, device="meta", followed=stages)
    wall = time.perf_counter()
    cpu = time.process_time()
    ranks = world.run(train, model, grid, steps)
    wall = time.perf_counter() - wall
    cpu = time.process_time() - cpu
    seconds = []
    for step in zip(*ranks, strict=True):
        seconds.append(max(times.end for times in step) - min(times.start for times in step))
    last = [times[-1] for times in ranks]
    sent = dict.fromkeys(AXES, 0)
    links = world.trace.traffic([(times.start, times.end) for times in last])
    for (src, dst), link in links.items():
        sent[AXIS_OF[places.between(src, dst)]] += link.nbytes
    memory = [world.trace.memory[rank] for rank in stages]
    times = [last[rank] for rank in stages]
    return Seen(
        seconds,
        max(peak(m, at.start, at.averaged) for m, at in zip(memory, times, strict=True)),
        max(peak(m, at.averaged, at.end) for m, at in zip(memory, times, strict=True)),
        sent,
        len(world.trace),
        wall,
        cpu,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def peak(memory: Timeline, start: float, end: float) -> int:
    """The most bytes at once from `start` until before `end`; all that changes at one time counts as one change."""
    first, last = np.searchsorted(memory.times, (start, end))
    return int(memory.total[max(first - 1, 0) : last].max(initial=0))


def planned(model: Transformer, cluster: Cluster, grid: Grid) -> Estimate:
    """What the planner says of the package's own layers, on the device whose time a World charges."""
    assert cluster.device is not None, "these clusters have one"
    machine = Machine(cluster.device, kernels=EAGER)
    kernels = replace(EAGER, overlap=grid.zero == 0 and grid.pipeline == 1)
    return Planner(model, cluster, kernels, machine, "ring").estimate(grid)


# ------------------------------------------------------------
# For people, and the command.


def report(case: Case, grid: Grid, seen: Seen) -> Table:
    """What was seen of steps of a case with as many micro-batches as `grid` has, beside what the planner says."""
    cluster = cluster_of(case.cluster)
    estimate = planned(case.model, cluster, grid)
    rows: list[tuple] = []
    last = seen.seconds[-1]
    for number, seconds in enumerate(seen.seconds, 1):
        says = estimate.step.total
        name = f"seconds of step {number}, {grid.micro_batches} micro-batches"
        rows.append((name, seconds, says, beside(seconds, says)))
    if case.published is not None or grid.micro_batches != case.grid.micro_batches:
        whole = planned(case.model, cluster, case.grid).step.total
        scaled = whole * last / estimate.step.total
        name = f"seconds of a whole step, {case.grid.micro_batches} micro-batches, scaled"
        rows.append((name, scaled, whole, beside(scaled, whole)))
        if case.published is not None:
            rows.append((f"published: {case.source}", case.published, None, ""))
    memory = estimate.memory.total
    rows.append(
        ("GB of the fullest rank", seen.memory / GB, memory / GB, beside(seen.memory, memory))
    )
    rows.append(("GB while the optimizer steps", seen.updating / GB, None, ""))
    known = step_bytes(case.model, grid)
    for axis, nbytes in seen.sent.items():
        name = f"bytes of step {len(seen.seconds)}, {axis}"
        rows.append((name, nbytes, known[axis], beside(nbytes, known[axis])))
    rows.append(("messages", seen.messages, None, ""))
    rows.append(("simulation: minutes of the wall", seen.wall / 60, None, ""))
    rows.append(("simulation: minutes of this process", seen.cpu / 60, None, ""))
    rows.append(("simulation: GB of memory", seen.resident / GB, None, ""))
    title = f"{cluster.summary()}\n{named(grid)}"
    return table(rows, ["", "the World", "the planner", "the World is"], title=title)


def beside(seen: float, said: float) -> str:
    """`+1.2 %`: how much more was seen than said."""
    if seen == said:
        return "equal"
    return f"{seen / said - 1:+.1%}" if said else "more"


def asked(words: Sequence[str]) -> tuple[Case, Grid, int]:
    """The case that the command line asks for, its grid with as many micro-batches as are to run, and the steps."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("case", nargs="?", default="small", choices=CASES)
    option("--steps", type=int, default=2, help="of which the last one is looked at")
    option("--micro-batches", type=int, help="to run of a step's; all if not given")
    option("--model", choices=MODELS, help="instead of the case's")
    option("--cluster", help="instead of the case's, as h100:128x8")
    for name in ("layers", "data", "tensor", "pipeline", "interleave", "zero", "micro_batch"):
        option(f"--{name.replace('_', '-')}", type=int, help="instead of the case's")
    option("--whole", type=int, help="micro-batches of a whole step, instead of the case's")
    option("--recompute", choices=("none", "full"), help="instead of the case's")
    args = parser.parse_args(words)
    given = {name: value for name, value in vars(args).items() if value is not None}
    case = CASES[args.case]
    if args.steps < 1:
        parser.error(f"a simulation has at least 1 step, not {args.steps}")
    model = MODELS[args.model] if args.model else case.model
    model = replace(model, layers=args.layers or model.layers)
    grid = replace(case.grid, micro_batches=args.whole or case.grid.micro_batches)
    fields = ("data", "tensor", "pipeline", "interleave", "zero", "micro_batch", "recompute")
    grid = replace(grid, **{name: given[name] for name in fields if name in given})
    same = model == case.model and grid == case.grid and not args.cluster
    asked_for = Case(model, args.cluster or case.cluster, grid, case.published, case.source)
    case = case if same else replace(asked_for, published=None, source="")
    return case, replace(grid, micro_batches=args.micro_batches or grid.micro_batches), args.steps


def main(words: Sequence[str]) -> int:
    """Print a simulation beside the planner's. 2 for what cannot be simulated."""
    case, grid, steps = asked(words)
    torch.set_num_threads(1)
    try:
        seen = simulate(case.model, cluster_of(case.cluster), grid, steps)
        print(report(case, grid, seen).text)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
