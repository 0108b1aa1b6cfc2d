"""A step of a GPT in stages: our one executor beside `torch.distributed.pipelining` over gloo.

    python -m benchmarks.pipeline [--quick] [--only NAME …]

GPipe, 1F1B and interleaved, the same model, the same micro-batches, 2 and 4 ranks. All in the same processes, one
after the other in every repeat, so that a noisy machine is noisy for all; one thread a rank. A figure is the median
over the repeats of the slowest rank's step (forward and backward of all micro-batches; no optimizer). Before, both
have given the same gradients. `ratio NAME VALUE`: PyTorch's time over ours over shared memory, median of the ratios
within a repeat; above 1, ours is faster.

"compute": each rank's own forwards and backwards without a message, all at once: no bubble either, so no executor is
as fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from benchmarks import tensor
from benchmarks.data_parallel import times_of
from benchmarks.options import options
from minidist.collectives import barrier
from minidist.comm import TorchComm
from minidist.models import gpt, next_token_loss, sequence
from minidist.parallel.pipeline import Pipeline
from minidist.parallel.schedules import gpipe, interleaved, one_f_one_b

SHAPE = dict(layers=8, hidden=64, heads=4, vocab=256, context=32, tied=False)
BATCH, MICRO_BATCHES = 32, 8
SCHEDULES = {"gpipe": (gpipe, 1), "1f1b": (one_f_one_b, 1), "interleaved": (interleaved, 2)}
"""Name: (our schedule, chunks a rank)."""


def batch() -> list[torch.Tensor]:
    """Tokens and targets, (B, T) each."""
    random = torch.Generator().manual_seed(0)
    shape = BATCH, SHAPE["context"]
    return [torch.randint(0, SHAPE["vocab"], shape, generator=random) for _ in range(2)]


def chunks_of(comm, v: int) -> list[nn.Module]:
    """This rank's parts of the model: as many layers in each, the embedding with the first, the head with the last."""
    parts = list(sequence(gpt(**SHAPE)))
    first, *layers, last = parts
    each = len(layers) // (comm.size * v)
    cut = [layers[i : i + each] for i in range(0, len(layers), each)]
    cut[0], cut[-1] = [first, *cut[0]], [*cut[-1], last]
    return [nn.Sequential(*cut[c * comm.size + comm.rank]) for c in range(v)]


def ours(comm, name: str) -> tuple[list[nn.Module], Callable[[], None]]:
    """(this rank's parts, a step) of our executor."""
    schedule, v = SCHEDULES[name]
    chunks = chunks_of(comm, v)
    pipeline = Pipeline(chunks, comm, schedule, next_token_loss)
    x, y = batch()

    def step() -> None:
        for chunk in chunks:
            chunk.zero_grad()
        pipeline.step(MICRO_BATCHES, x, y)

    return chunks, step


def theirs(comm, name: str) -> tuple[list[nn.Module], Callable[[], None]]:
    """The same of PyTorch's."""
    from torch.distributed import pipelining

    v = SCHEDULES[name][1]
    chunks, parts = chunks_of(comm, v), comm.size * v
    numbers = [c * comm.size + comm.rank for c in range(v)]
    stages = [
        pipelining.PipelineStage(m, i, parts, torch.device("cpu"))
        for m, i in zip(chunks, numbers, strict=True)
    ]
    kind = {
        "gpipe": pipelining.ScheduleGPipe,
        "1f1b": pipelining.Schedule1F1B,
        "interleaved": pipelining.ScheduleInterleaved1F1B,
    }[name]
    schedule = kind(stages if v > 1 else stages[0], MICRO_BATCHES, next_token_loss)
    x, y = batch()
    inputs, more = (
        ([x] if 0 in numbers else []),
        (dict(target=y, losses=[]) if parts - 1 in numbers else {}),
    )

    def step() -> None:
        for chunk in chunks:
            chunk.zero_grad()
        schedule.step(*inputs, **more, return_outputs=False)

    return chunks, step


def compute(comm) -> Callable[[], None]:
    """The forwards and backwards of this rank's layers alone."""
    chunk, (x, y) = chunks_of(comm, 1)[0], batch()
    begins, ends = comm.rank == 0, comm.rank == comm.size - 1
    rows = BATCH // MICRO_BATCHES
    inner = torch.randn(rows, SHAPE["context"], SHAPE["hidden"])

    def step() -> None:
        chunk.zero_grad()
        for first in range(0, BATCH, rows):
            out = chunk(x[first : first + rows] if begins else inner.clone().requires_grad_())
            (next_token_loss(out, y[first : first + rows]) if ends else out.sum()).backward()

    return step


def equal(a: list[nn.Module], b: list[nn.Module]) -> None:
    """Both ways must have computed the same gradients."""
    for p, q in zip(nn.ModuleList(a).parameters(), nn.ModuleList(b).parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6)


def program(comm, store: str, repeats: int, names: list[str]) -> dict[tuple[str, str], list[float]]:
    """Seconds by schedule, way and repeat."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", store=dist.FileStore(store, comm.size), rank=comm.rank, world_size=comm.size
    )
    gloo, times = TorchComm(), {}
    for name in names:
        made = {
            "PyTorch, gloo": theirs(comm, name),
            "ours, shared memory": ours(comm, name),
            "ours, gloo": ours(gloo, name),
        }
        for _, step in made.values():
            step()
        for chunks, _ in made.values():
            equal(chunks, made["PyTorch, gloo"][0])
        ways = {(name, way): step for way, (_, step) in made.items()} | {
            (name, "compute"): compute(comm)
        }
        times |= times_of(comm, ways, repeats)
    barrier(comm)
    dist.destroy_process_group()
    return times


def measure(
    counts: list[int], repeats: int, names: Sequence[str] = tuple(SCHEDULES)
) -> dict[str, float]:
    """Print the table and the ratios; returns the ratios by name."""
    return tensor.measure(counts, repeats, list(names), program, "pipeline")


if __name__ == "__main__":
    args = options(__doc__, repeats=(5, 20), only=SCHEDULES)
    measure([2, 4], args.repeats, args.only)
