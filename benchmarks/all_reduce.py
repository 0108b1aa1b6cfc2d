"""All-reduce: our ring over shared memory, over gloo and in a World, beside gloo's own.

    python -m benchmarks.all_reduce [--quick]

All in the same processes, one after the other in every repeat, so that a noisy machine is noisy for all.
A figure is the median over the repeats of the slowest rank's time. `ratio NAME VALUE`: gloo's own time
over ours, median of the ratios within a repeat; above 1, ours is faster. `limit NAME VALUE`: the same, of the fastest
that one machine allows (`Direct`) over our ring.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time

import torch

from benchmarks.options import options, report
from minidist.collectives import all_reduce_, barrier
from minidist.comm import TorchComm, World, launch

SIZES = [4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]  # bytes


class Direct:
    """An all-reduce straight through memory that all ranks map: no message, no copy but one in and one out.

    Each rank copies its tensor in, adds up its chunk of everybody's, and copies the sum out; three barriers that spin
    part the steps. It is the limit on one machine: a ring hands every chunk on n − 1 times, and wakes its neighbour.
    """

    def __init__(self, rank: int, size: int, path: str, most: int):
        """path: of a file that all ranks name alike; most: elements of the largest tensor."""
        flags = torch.from_file(f"{path}.flags", shared=True, size=size, dtype=torch.int64)
        self.arrived = flags.numpy()
        self.room = torch.from_file(path, shared=True, size=(size + 1) * most).view(size + 1, most)
        self.rank = rank
        self.steps = 0

    def barrier(self) -> None:
        self.steps += 1
        self.arrived[self.rank] = self.steps
        while self.arrived.min() < self.steps:
            os.sched_yield()

    def all_reduce_(self, x: torch.Tensor) -> None:
        """Leave the sum of everybody's x, float32 of one dimension, in x."""
        ranks = len(self.arrived)
        *inputs, total = self.room[:, : len(x)].unbind()
        inputs[self.rank].copy_(x)
        self.barrier()
        chunk = total.tensor_split(ranks)[self.rank]
        first, *others = (row.tensor_split(ranks)[self.rank] for row in inputs)
        chunk.copy_(first)
        for other in others:
            chunk += other
        self.barrier()
        x.copy_(total)
        self.barrier()


def program(comm, store: str, sizes: list[int], repeats: int) -> dict[int, dict[str, list[float]]]:
    """Seconds of each way to all-reduce, by size and repeat; the same numbers on every rank."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", store=dist.FileStore(store, comm.size), rank=comm.rank, world_size=comm.size
    )
    gloo = TorchComm()
    direct = Direct(comm.rank, comm.size, f"{store}.room", max(sizes) // 4)
    check = torch.full((7,), comm.rank + 1.0)
    direct.all_reduce_(check)
    assert check.tolist() == [comm.size * (comm.size + 1) / 2] * 7
    ways = {
        "gloo's own": lambda x: dist.all_reduce(x),
        "direct": direct.all_reduce_,
        "ring, shared memory": lambda x: all_reduce_(comm, x, algorithm="ring"),
        "ring, gloo": lambda x: all_reduce_(gloo, x, algorithm="ring"),
    }
    times = {nbytes: _times(comm, ways, nbytes, repeats) for nbytes in sizes}
    barrier(comm)
    dist.destroy_process_group()
    return times


def _times(comm, ways: dict, nbytes: int, repeats: int) -> dict[str, list[float]]:
    x = torch.zeros(nbytes // 4)
    inner = max(1, min(20, (2 << 20) // nbytes))
    times: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, run in ways.items():
            barrier(comm)
            start = time.perf_counter()
            for _ in range(inner):
                run(x)
            slowest = torch.tensor([(time.perf_counter() - start) / inner], dtype=torch.float64)
            all_reduce_(comm, slowest, op="max")
            if repeat:  # the first one warms up
                times[name].append(slowest.item())
    return times


def in_world(n: int, nbytes: int, repeats: int) -> float:
    """Wall seconds of a World's all-reduce of real data."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        World(n).run(_once, nbytes)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _once(comm, nbytes: int) -> None:
    all_reduce_(comm, torch.zeros(nbytes // 4))


def human(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


def measure(ranks: list[int], sizes: list[int], repeats: int) -> dict[str, float]:
    """Print the table, the ratios and the limits; returns the ratios by name."""
    ratios, limits = {}, {}
    heads = ["gloo own", "direct", "ring shm", "ring gloo", "World"]
    print(
        f"{'ranks':>5} {'size':>8} "
        + " ".join(f"{h:>10}" for h in heads)
        + "   ms; own/shm, own/ring gloo"
    )
    for n in ranks:
        with tempfile.TemporaryDirectory() as folder:
            times = launch(program, n, f"{folder}/store", sizes, repeats, timeout=120)[0]
        for nbytes, rows in times.items():
            own, direct, shm, gloo = rows.values()
            medians = map(statistics.median, (own, direct, shm, gloo))
            ms = [1e3 * t for t in (*medians, in_world(n, nbytes, 3))]
            over = [
                statistics.median(a / b for a, b in zip(own, other, strict=True))
                for other in (shm, gloo)
            ]
            name = f"all_reduce n={n} {human(nbytes)}"
            ratios[name] = over[0]
            limits[name] = statistics.median(a / b for a, b in zip(direct, shm, strict=True))
            print(
                f"{n:>5} {human(nbytes):>8} "
                + " ".join(f"{t:>10.3f}" for t in ms)
                + f"   {over[0]:.2f}, {over[1]:.2f}",
                flush=True,
            )
    report(limits, "limit")
    return report(ratios)


if __name__ == "__main__":
    args = options(__doc__, repeats=(5, 15), quick="three sizes, few repeats")
    measure([2, 4], SIZES[::3] if args.quick else SIZES, args.repeats)
