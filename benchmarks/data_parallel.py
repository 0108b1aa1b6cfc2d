"""A training step of a model of 10 million parameters: our DataParallel beside PyTorch's DDP over gloo.

    python -m benchmarks.data_parallel [--quick]

All in the same processes, one after the other in every repeat, so that a noisy machine is noisy for all; one
thread a rank. A figure is the median over the repeats of the slowest rank's step (forward, backward, SGD).
`ratio NAME VALUE`: DDP's time over ours, median of the ratios within a repeat; above 1, ours is faster.

Then over a link of 100 MB/s, with a larger batch: with overlap and without, for several bucket sizes, measured
in wall time; beside it what a World says whose device needs as long as a rank here without messages.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
from torch import nn

from benchmarks.options import options, report
from minidist.collectives import all_reduce_, barrier
from minidist.comm import TorchComm, World, launch
from minidist.comm.cluster import Cluster, Device
from minidist.models import mlp
from minidist.parallel.data import DataParallel
from minidist.study.predict import best_bucket

WIDTHS = [1000] * 11  # 10 layers, 10,010,000 parameters
BATCH, SLOW_BATCH = 32, 256  # samples a rank
RATE, ALPHA = 100e6, 20e-6  # bytes per second of the slow link, and seconds of a message
BUCKETS = {"a layer": 5 << 20, "25 MiB": 25 << 20, "one for all": 1 << 30}


def step_of(model: nn.Module, batch: int, device: str = "cpu") -> Callable[[], None]:
    """A training step: `step()`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = (
        torch.randn(batch, WIDTHS[0], device=device),
        torch.randn(batch, WIDTHS[-1], device=device),
    )

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()

    return step


def times_of(comm, ways: dict[str, Callable], repeats: int) -> dict[str, list[float]]:
    """Seconds of the slowest rank, by way and repeat; the first two repeats warm up."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 2):
        for name, step in ways.items():
            barrier(comm)
            start = time.perf_counter()
            step()
            slowest = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
            all_reduce_(comm, slowest, op="max")
            if repeat > 1:
                times[name].append(slowest.item())
    return times


def beside_ddp(comm, store: str, repeats: int) -> dict[str, list[float]]:
    """The program of the first table."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", store=dist.FileStore(store, comm.size), rank=comm.rank, world_size=comm.size
    )
    gloo = TorchComm()
    models = {
        "DDP, gloo": nn.parallel.DistributedDataParallel(mlp(WIDTHS), gradient_as_bucket_view=True),
        "ours, shared memory": DataParallel(mlp(WIDTHS), comm),
        "ours, no overlap": DataParallel(mlp(WIDTHS), comm, overlap=False),
        "ours, gloo": DataParallel(mlp(WIDTHS), gloo),
        "no messages": mlp(WIDTHS),
    }
    times = times_of(comm, {name: step_of(model, BATCH) for name, model in models.items()}, repeats)
    barrier(comm)
    dist.destroy_process_group()
    return times


def slow_ways(comm, device: str) -> dict[str, Callable]:
    """(bucket, overlap): a step with it; "no messages": one without."""

    def wrapped(nbytes: int, overlap: bool) -> nn.Module:
        return DataParallel(mlp(WIDTHS, device=device), comm, nbytes, nbytes, overlap)

    ways = {
        f"{name}, {'overlap' if overlap else 'at the end'}": step_of(
            wrapped(nbytes, overlap), SLOW_BATCH, device
        )
        for name, nbytes in BUCKETS.items()
        for overlap in (True, False)
    }
    return ways | {"no messages": step_of(mlp(WIDTHS, device=device), SLOW_BATCH, device)}


def over_a_slow_link(comm, repeats: int) -> dict[str, list[float]]:
    """The program of the second table, on processes."""
    return times_of(comm, slow_ways(comm, "cpu"), repeats)


def in_world(comm) -> dict[str, float]:
    """The same in a World: virtual seconds of the third step."""
    found = {}
    for name, step in slow_ways(comm, "meta").items():
        for _ in range(3):
            barrier(comm)
            start = comm.now()
            step()
        found[name] = comm.now() - start
    return found


def gradients(comm) -> tuple[list[int], list[float]]:
    """Bytes of each gradient and the virtual seconds until it is ready, in the order of readiness."""
    model = mlp(WIDTHS, device="meta")
    sizes = []
    times = []
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(
            lambda p: sizes.append(p.nbytes) or times.append(comm.now())
        )
    loss = model(torch.empty(SLOW_BATCH, WIDTHS[0], device="meta")).sum()
    times.append(comm.now())
    loss.backward()
    return sizes, [b - a for a, b in itertools.pairwise(times)]


def predicted(n: int, compute: float) -> tuple[dict[str, float], str]:
    """What a World says where a step without messages takes `compute` seconds, and the best bucket by the model."""

    def world(flops: float, ranks: int) -> World:
        device = Device("a rank", {torch.float32: flops}, 1 << 40, 1e18)
        return World(ranks, cluster=Cluster.uniform(ranks, ALPHA, 1 / RATE, device), device="meta")

    flops = world(1.0, 1).run(in_world)[0]["no messages"] / compute
    found = world(flops, n).run(in_world)
    best = best_bucket(
        *world(flops, 1).run(gradients)[0], n, ALPHA, 1 / RATE, list(BUCKETS.values())
    )
    return (
        {name: max(times[name] for times in found) for name in found[0]},
        next(name for name, nbytes in BUCKETS.items() if nbytes == best),
    )


def spread(times: list[float]) -> str:
    """Median and quartiles in ms."""
    low, middle, high = statistics.quantiles(times, n=4)
    return f"{1e3 * middle:>8.1f}  [{1e3 * low:.1f}, {1e3 * high:.1f}]"


def measure(ranks: list[int], repeats: int) -> dict[str, float]:
    """Print the first table and the ratios; returns the ratios by name."""
    ratios = {}
    for n in ranks:
        with tempfile.TemporaryDirectory() as folder:
            times = launch(beside_ddp, n, f"{folder}/store", repeats, timeout=120)[0]
        print(f"{n} ranks, a step in ms: median [quartiles], DDP's over it")
        for name, own in times.items():
            over = statistics.median(a / b for a, b in zip(times["DDP, gloo"], own, strict=True))
            print(f"  {name:<22} {spread(own):<28} {over:.2f}", flush=True)
            if name.startswith("ours, s") or name.startswith("ours, n"):
                ratios[f"data_parallel_{'overlap' if 'shared' in name else 'at_the_end'}_n={n}"] = (
                    over
                )
    return report(ratios)


def measure_slow(n: int, repeats: int) -> dict[str, tuple[float, float]]:
    """Print the second table; returns (measured, predicted) seconds by way."""
    times = launch(over_a_slow_link, n, repeats, rate=RATE, timeout=120)[0]
    measured = {name: statistics.median(own) for name, own in times.items()}
    world, best = predicted(n, measured["no messages"])
    print(f"{n} ranks, {RATE / 1e6:.0f} MB/s, a step in ms: median [quartiles], in a World, error")
    for name, own in times.items():
        print(
            f"  {name:<24} {spread(own):<28} {1e3 * world[name]:>8.1f} {world[name] / measured[name] - 1:>+7.0%}"
        )
    for name in BUCKETS:
        on, off = f"{name}, overlap", f"{name}, at the end"
        gains = f"measured {measured[off] / measured[on]:.3f}, in the World {world[off] / world[on]:.3f}"
        print(f"gain of overlap, {name}, n={n}: {gains}", flush=True)
    least = [
        min(BUCKETS, key=lambda name, of=of: of[f"{name}, overlap"]) for of in (world, measured)
    ]
    print(
        f"best bucket, n={n}: by the model {best}, in the World {least[0]}, measured {least[1]}",
        flush=True,
    )
    return {name: (measured[name], world[name]) for name in times}


if __name__ == "__main__":
    args = options(__doc__, repeats=(7, 30))
    measure([2, 4], args.repeats)
    for ranks in [2] if args.quick else [2, 4]:
        measure_slow(ranks, max(3, args.repeats // 3))
