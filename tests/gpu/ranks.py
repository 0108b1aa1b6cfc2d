"""What the ranks of the first hour do, under torchrun: over NCCL on GPUs, or over gloo on a CPU, where they are small.

    torchrun --nproc-per-node 2 -m tests.gpu.ranks --backend nccl collectives posted

Each program is a function of a Comm that returns what its rank found; beside it stands what must be true of the finds
of all ranks. That raises AssertionError where it is not, and says in words what was seen where it is.
"""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from minidist.collectives import all_reduce_, all_to_all, barrier, broadcast_, reduce_scatter
from minidist.comm import from_env
from minidist.comm.torchdist import TorchComm
from minidist.models import mlp
from minidist.parallel.data import DataParallel, average_gradients
from minidist.parallelize import SCHEDULES
from tests import parallelized
from tests.comm import test_posted_order
from tests.parallelized import MODERN
from tests.test_parallelize import CASES, STEPS


class Program(NamedTuple):
    """run: what a rank does with its Comm.  check: of the finds of all ranks, in rank order; says what was seen."""

    run: Callable[..., Any]
    check: Callable[[list], str]


def on_gpu(comm):
    """Whether sizes are those of a GPU; a CPU shows the same with small ones."""
    return comm.device.type == "cuda"


# Collectives, and posted operations.


def collectives(comm):
    """Each result's largest difference from what the ranks' numbers make, added in rank order."""
    n, r = comm.size, comm.rank
    xs = [
        torch.randn(12 * n, generator=torch.Generator().manual_seed(k), dtype=torch.float64)
        for k in range(n)
    ]
    mine, total = (lambda: xs[r].clone().to(comm.device)), sum(xs)
    found = {
        f"all_reduce, {algorithm}": all_reduce_(comm, mine(), algorithm=algorithm).cpu() - total
        for algorithm in ("native", "ring", "tree", "halving_doubling", "auto")
    }
    for algorithm in ("native", "ring"):
        part = reduce_scatter(comm, mine(), algorithm=algorithm)
        found[f"reduce_scatter, {algorithm}"] = part.cpu() - total.chunk(n)[r]
    found["broadcast"] = broadcast_(comm, mine(), n - 1).cpu() - xs[n - 1]
    found["all_to_all"] = all_to_all(comm, mine()).cpu() - torch.cat([x.chunk(n)[r] for x in xs])
    return {name: gap.abs().max().item() for name, gap in found.items()}


def right(gaps):
    for rank, found in enumerate(gaps):
        wrong = {name: gap for name, gap in found.items() if not gap < 1e-13}
        assert not wrong, f"rank {rank}: {wrong}"
    return f"ranks: {len(gaps)}, collectives: {len(gaps[0])}, none off by 1e-13"


POSTED = (
    "send_first",
    "receive_first_waits_crossed",
    "many_outstanding",
    "mixed_sizes",
    "a_batch_between",
    "a_collective_between",
    "polled",
)


def posted(comm):
    """How many messages came right, in whatever order operations are posted and waited for."""
    cases = [getattr(test_posted_order, name) for name in POSTED]
    return sum(test_posted_order.compare(case(comm)) for case in cases) if comm.size > 1 else 0


def all_came(counts):
    assert all(count > 0 for count in counts) or len(counts) == 1, counts
    return f"posted messages: {sum(counts)}, all came right"


# Training on grids of ranks, as on one rank.


def train(comm, axes, shape, options):
    return parallelized.train(
        comm, dict(zip(("dp", "pp", "tp", "cp"), axes)), shape, options, STEPS
    )


def as_serial(name, shape, finds):
    """The losses and the parameters that the ranks found are those of the serial run."""
    loss, parameter = parallelized.gaps(finds, *parallelized.serial(shape, STEPS))
    assert loss < 1e-10, (name, loss)
    assert parameter < 1e-9, (name, parameter)


def grids(comm):
    """The cases of `parallelize` for so many ranks; of eight ranks two, which have all that the others have."""
    return {
        name: train(comm, axes, shape, options)
        for name, (axes, shape, options) in CASES.items()
        if math.prod(axes) == comm.size and (comm.size < 8 or name in ("zero 3", "all at once"))
    }


def grids_as_serial(finds):
    for name in finds[0]:
        as_serial(name, CASES[name][1], [found[name] for found in finds])
    return f"ranks: {len(finds)}, grids: {len(finds[0])}, each trains as one rank does"


DEEP = MODERN | dict(layers=6, tied=False)  # eight parts: two chunks for each of four stages


def pipelines(comm):
    """A stage a rank, by each schedule."""
    found = {}
    for name in SCHEDULES:
        chunks = 2 if name in ("interleaved", "zb_v") else 1
        options = dict(schedule=name, chunks=chunks, micro_batches=4)
        found[name] = train(comm, (1, comm.size, 1), DEEP, options)
    return found


def pipelines_as_serial(finds):
    for name in finds[0]:
        as_serial(name, DEEP, [found[name] for found in finds])
    return f"stages: {len(finds)}, pipelines: {len(finds[0])}, each trains as one rank does"


FOUR = MODERN | dict(layers=3)


def mixed(comm):
    """Data 2 × tensor 2 × ZeRO 3, again and again: what two lanes give one queue in different orders hangs at times."""
    times = 10 if on_gpu(comm) else 2
    options = dict(zero=3, micro_batches=2, recompute="full", sequence_parallel=True)
    return [train(comm, (comm.size // 2, 1, 2), FOUR, options) for _ in range(times)]


def mixed_as_serial(finds):
    for time_, found in enumerate(zip(*finds, strict=True)):
        as_serial(f"run {time_}", FOUR, list(found))
    return f"runs: {len(finds[0])}, none hung, each trains as one rank does"


# Overlap: how much of the communication a device does while it computes.

LEAST_HIDDEN = 0.2
"""The share that must be hidden of what could be, which is the shorter one of communication and computation. A choice:
what issues everything on one stream hides nothing, and forward, a third of the computation, has nothing to hide."""


def overlap(comm):
    """The hidden share of the communication: of buckets that leave during backward, and of gradients sent after it."""
    hidden, layers, batch = (4096, 8, 8192) if on_gpu(comm) else (256, 4, 2048)
    found = {}
    for name, early in (("during backward", True), ("after it", False)):
        module = mlp([hidden] * (layers + 1), dtype=torch.float32, device=comm.device)
        model = DataParallel(module, comm, bucket_bytes=4 * hidden * hidden) if early else module
        x = torch.randn(batch, hidden, device=comm.device)

        def step(model=model, module=module, x=x, early=early):
            module.zero_grad()
            model(x).square().mean().backward()
            if not early:
                average_gradients(comm, module)

        step()
        found[name] = hidden_shares(*spans(profiled(comm, step)))
        del model, module
    return found


def profiled(comm, step, steps=3):
    """The events of some steps, as Chrome's trace has them."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu(comm) else [])]
    everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    barrier(comm)
    with profile(activities=activities, experimental_config=everywhere) as profiler:
        for _ in range(steps):
            step()
        if on_gpu(comm):
            torch.cuda.synchronize(comm.device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return json.loads(path.read_text())["traceEvents"]


def spans(events):
    """(start, end) in µs of each piece of communication, and of each of computation: on a GPU its kernels, NCCL's and
    all others; on a CPU what gloo does, and matrix products."""
    kernels = [event for event in events if event.get("cat") == "kernel"]
    if kernels:
        communication = [event for event in kernels if "nccl" in event["name"].lower()]
        computation = [event for event in kernels if "nccl" not in event["name"].lower()]
    else:
        communication = [event for event in events if event.get("name", "").startswith("gloo:")]
        computation = [
            event for event in events if event.get("name") in ("aten::mm", "aten::addmm")
        ]
    return [
        [(event["ts"], event["ts"] + event["dur"]) for event in some if "dur" in event]
        for some in (communication, computation)
    ]


def hidden_shares(communication, computation):
    """The time in which there is communication and computation, as a share of all communication, and of what could be
    hidden; None where one of the two is not seen."""
    communication, computation = union(communication), union(computation)
    total, most = (sum(end - start for start, end in some) for some in (communication, computation))
    both = sum(
        max(0, min(end, other_end) - max(start, other_start))
        for start, end in communication
        for other_start, other_end in computation
    )
    return (both / total, both / min(total, most)) if total and most else None


def union(spans):
    """The same times, in spans that are apart."""
    found = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def is_hidden(finds):
    for rank, found in enumerate(finds):
        assert None not in found.values(), (
            f"rank {rank}: communication or computation is not in the profile: {found}"
        )
    share, early = (min(found["during backward"][i] for found in finds) for i in (0, 1))
    late = max(found["after it"][1] for found in finds)
    words = (
        f"hidden are {share:.0%} of the communication, {early:.0%} of what could be; of gradients that are sent "
        f"after backward {late:.0%}"
    )
    assert early >= LEAST_HIDDEN and early > late, words
    return words


# Bandwidth: our ring beside the library's own all-reduce.


def bandwidth(comm):
    """{bytes: {algorithm: seconds}} of all-reduces, the fastest of some, and whether all results were right."""
    sizes = [2**20, 2**24, 2**28] if on_gpu(comm) else [2**16, 2**20]
    ways = {
        "ring": (comm, "ring"),
        "ring without headers": (TorchComm(checked=False), "ring"),
        "native": (comm, "native"),
    }
    found, exact = {}, True
    for nbytes in sizes:
        base = torch.arange(nbytes // 4, device=comm.device).remainder(97).float()
        took = {}
        for name, (over, algorithm) in ways.items():
            x, seconds = base + comm.rank, []
            for _ in range(6):
                barrier(over)
                settled(over)
                start = time.perf_counter()
                all_reduce_(over, x, op="max", algorithm=algorithm)
                settled(over)
                seconds.append(time.perf_counter() - start)
            # the largest stays the largest, however often
            exact = exact and torch.equal(x, base + comm.size - 1)
            took[name] = min(seconds[1:])
        found[nbytes] = took
    return found, exact


def settled(comm):
    """What was posted is done, on the device too."""
    comm.flush()
    if on_gpu(comm):
        torch.cuda.synchronize(comm.device)


def measured(finds):
    assert all(exact for _, exact in finds), "an all-reduce gave a wrong result"
    n, rows = len(finds), []
    for nbytes in finds[0][0]:
        slowest = {
            name: max(found[nbytes][name] for found, _ in finds) for name in finds[0][0][nbytes]
        }
        rates = [
            f"{name} {2 * (n - 1) / n * nbytes / seconds / 1e9:.3g}"
            for name, seconds in slowest.items()
        ]
        rows.append(f"{nbytes / 2**20:g} MiB: {', '.join(rates)} GB/s")
    return f"{'; '.join(rows)}, over {n} ranks"


PROGRAMS = {
    "collectives": Program(collectives, right),
    "posted": Program(posted, all_came),
    "grids": Program(grids, grids_as_serial),
    "pipelines": Program(pipelines, pipelines_as_serial),
    "mixed": Program(mixed, mixed_as_serial),
    "overlap": Program(overlap, is_hidden),
    "bandwidth": Program(bandwidth, measured),
}


def main():
    flags = argparse.ArgumentParser(description="Programs of ranks, under torchrun.")
    flags.add_argument(
        "programs", nargs="+", choices=PROGRAMS, metavar="PROGRAM", help=", ".join(PROGRAMS)
    )
    flags.add_argument("--backend", required=True)
    args = flags.parse_args()
    comm = from_env(args.backend)
    device = "cuda" if args.backend == "nccl" else "cpu"
    assert comm.device.type == device, (
        f"over {args.backend} tensors are on {device}, not on {comm.device}"
    )
    for name in args.programs:
        program, finds = PROGRAMS[name], [None] * comm.size
        dist.all_gather_object(finds, program.run(comm))
        if comm.rank == 0:
            print(f"seen: {program.check(finds)}", flush=True)


if __name__ == "__main__":
    main()
