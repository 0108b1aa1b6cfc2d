"""ZeRO beside PyTorch's: a training step of a model of 10 million parameters, and the most memory that it takes.

    python -m benchmarks.zero [--quick] [--only NAME …]

stage_1: ours against ZeroRedundancyOptimizer with DDP, AdamW in fp32, over gloo; stage 2 is beside it.
stage_3: FullySharded against FSDP2's fully_shard, the same.

All in the same processes, one after the other in every repeat, so that a noisy machine is noisy for all; one thread a
rank. A figure is the median over the repeats of the slowest rank's step (forward, backward, optimizer). `ratio NAME
VALUE`: PyTorch's time over ours in shared memory, median of the ratios within a repeat; above 1, ours is faster. Bytes
are those of PyTorch's CPU allocator (its profiler counts them) from before the model is made to the end of the third
step, at most, on the rank that has most; `peak NAME VALUE`: ours over PyTorch's; below 1, ours is smaller. The profiler
hears of the thread that it is called in alone: so nothing is overlapped here (stage 2 sends in backward, waiting). All
ways are held against each other before they are timed: the same parameters after three steps.

A case is a function of CASES: `case(ranks) -> {way: make}`, the first way being that which the others are divided by;
`make()` gives a model and its step.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.data_parallel import BATCH, WIDTHS, spread, times_of
from benchmarks.options import options
from minidist.collectives import all_reduce_, barrier
from minidist.comm import Comm, TorchComm, launch
from minidist.models import mlp
from minidist.parallel.zero import FullySharded, ShardedOptimizer

OURS = "ours, shared memory"
Step = Callable[[], None]
Make = Callable[[], tuple[nn.Module, Step]]


@dataclass
class Ranks:
    """What a case may use: our Comms over shared memory and gloo. torch.distributed is over gloo."""

    shared: Comm
    gloo: Comm


def step_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, rank: int
) -> tuple[nn.Module, Step]:
    """The model, and a training step of it on this rank's batch."""
    random = torch.Generator().manual_seed(rank)
    x, y = (
        torch.randn(BATCH, WIDTHS[0], generator=random),
        torch.randn(BATCH, WIDTHS[-1], generator=random),
    )

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()

    return model, step


def stage_1(ranks: Ranks) -> dict[str, Make]:
    """Optimizer states at the owners."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    rank = ranks.shared.rank

    def theirs(as_views: bool) -> tuple[nn.Module, Step]:
        model = nn.parallel.DistributedDataParallel(mlp(WIDTHS), gradient_as_bucket_view=True)
        return step_of(
            model,
            ZeroRedundancyOptimizer(
                model.parameters(), torch.optim.AdamW, parameters_as_bucket_view=as_views, lr=1e-3
            ),
            rank,
        )

    def ours(comm: Comm, stage: int = 1) -> tuple[nn.Module, Step]:
        model = mlp(WIDTHS)
        optimizer = ShardedOptimizer(
            model.parameters(), torch.optim.AdamW, comm, stage, overlap=False, lr=1e-3
        )
        return step_of(model, optimizer, rank)

    # with its parameters as bucket views: less memory
    return {
        "ZeroRedundancyOptimizer, gloo": lambda: theirs(True),
        "the same, without views": lambda: theirs(False),
        OURS: lambda: ours(ranks.shared),
        "ours, gloo": lambda: ours(ranks.gloo),
        "stage 2, shared memory": lambda: ours(ranks.shared, 2),
    }


def stage_3(ranks: Ranks) -> dict[str, Make]:
    """All in shards; every layer a block."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    rank, mesh = ranks.shared.rank, init_device_mesh("cpu", (ranks.shared.size,))

    def theirs() -> tuple[nn.Module, Step]:
        model = mlp(WIDTHS)
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return step_of(model, torch.optim.AdamW(model.parameters(), lr=1e-3), rank)

    def ours(comm: Comm, prefetch: int = 1) -> tuple[nn.Module, Step]:
        model = FullySharded(mlp(WIDTHS), comm, prefetch=prefetch, blocks=nn.Linear)
        return step_of(model, torch.optim.AdamW(model.parameters(), lr=1e-3), rank)

    return {
        "fully_shard, gloo": theirs,
        OURS: lambda: ours(ranks.shared),
        "ours, gloo": lambda: ours(ranks.gloo),
        "no prefetch, shared memory": lambda: ours(ranks.shared, 0),
        "no prefetch, gloo": lambda: ours(ranks.gloo, 0),
    }


CASES: dict[str, Callable[[Ranks], dict[str, Make]]] = {"stage_1": stage_1, "stage_3": stage_3}


def whole(model: nn.Module) -> list[torch.Tensor]:
    """Parameters, put together where ranks have parts of them."""
    if isinstance(model, FullySharded):
        return list(model.full_state_dict().values())
    return [
        (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone()
        for p in model.parameters()
    ]


def peak_of(comm: Comm, make: Make) -> tuple[int, list[torch.Tensor]]:
    """The most bytes of tensors at once on any rank, three steps from nothing; the parameters after them."""
    from torch.profiler import ProfilerActivity, profile

    barrier(comm)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        model, step = make()
        for _ in range(3):
            step()
    events = [e for e in trace.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = itertools.accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()))
    most = torch.tensor(max(live))
    params = whole(model)
    del model, step, trace
    gc.collect()
    return int(all_reduce_(comm, most, "max")), params


def peaks_of(comm: Comm, ways: dict[str, Make]) -> dict[str, int]:
    """Peak bytes of each way, whose parameters must be the same."""
    peaks, first = {}, None
    for way, make in ways.items():
        peaks[way], params = peak_of(comm, make)
        first = params if first is None else first
        # Adam's first steps divide by small numbers
        torch.testing.assert_close(params, first, rtol=1e-3, atol=1e-4)
    return peaks


def program(comm: Comm, store: str, repeats: int, names: list[str]) -> dict[str, tuple[dict, dict]]:
    """By case: seconds of each way and repeat, and its peak bytes."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", store=dist.FileStore(store, comm.size), rank=comm.rank, world_size=comm.size
    )
    ranks, found = Ranks(comm, TorchComm()), {}
    for name in names:
        ways = CASES[name](ranks)
        peaks = peaks_of(comm, ways)
        found[name] = times_of(comm, {way: make()[1] for way, make in ways.items()}, repeats), peaks
    barrier(comm)
    gc.collect()  # gloo sometimes aborts at exit otherwise
    dist.destroy_process_group()
    return found


def table(
    n: int, name: str, times: dict[str, list[float]], peaks: dict[str, int]
) -> dict[str, float]:
    """Print a case; returns its ratio and its peak."""
    print(
        f"{n} ranks, {name}, a step in ms: median [quartiles], the first one's over it; peak MB, it over the first's"
    )
    theirs = next(iter(times))
    over = {
        way: statistics.median(a / b for a, b in zip(times[theirs], times[way], strict=True))
        for way in times
    }
    for way, own in times.items():
        share = peaks[way] / peaks[theirs]
        print(
            f"  {way:<30} {spread(own):<28} {over[way]:.2f} {peaks[way] / 1e6:>10.1f} {share:.3f}",
            flush=True,
        )
    return {
        f"ratio zero_{name}_n={n}": over[OURS],
        f"peak zero_{name}_n={n}": peaks[OURS] / peaks[theirs],
    }


def measure(counts: list[int], repeats: int, names: list[str]) -> dict[str, float]:
    """Print the tables and the ratios; returns the ratios by name."""
    figures = {}
    for n in counts:
        with tempfile.TemporaryDirectory() as folder:
            found = launch(program, n, f"{folder}/store", repeats, names, timeout=240)[0]
        for name, (times, peaks) in found.items():
            figures |= table(n, name, times, peaks)
    for name, value in figures.items():
        print(f"{name} {value:.3f}")
    return figures


if __name__ == "__main__":
    args = options(__doc__, repeats=(7, 30), only=CASES)
    measure([2, 4], args.repeats, args.only)
