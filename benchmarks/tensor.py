"""Layers split over ranks: ours beside PyTorch's DTensor (`parallelize_module`) over gloo.

    python -m benchmarks.tensor [--quick] [--only NAME …]

All in the same processes, one after the other in every repeat, so that a noisy machine is noisy for all; one
thread a rank. A figure is the median over the repeats of the slowest rank's step: forward and backward of one
block. `ratio NAME VALUE`: PyTorch's time over ours in shared memory, median of the ratios within a repeat; above 1,
ours is faster. Every way is held against the serial block before it is timed.

A case is a function of CASES: `case(ranks) -> {way: step}`, the first way being that which the others are divided by.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.data_parallel import spread, times_of
from benchmarks.options import options, report
from minidist.comm import Comm, TorchComm, launch
from minidist.models import MLP, Attention, TransformerLayer, seeded_
from minidist.parallel.tensor import tensor_parallel_
from minidist.parallel.vocab import gathered_cross_entropy, vocab_cross_entropy
from minidist.split import uneven

HIDDEN = 768
HEADS = 12
BATCH = 4
TOKENS = 64  # a block of GPT-2 small
VOCAB = 50_257
Step = Callable[[], Any]


@dataclass
class Ranks:
    """What a case may use: our Comms over shared memory and gloo, and DTensor's mesh over gloo."""

    shared: Comm
    gloo: Comm
    mesh: Any


def step_of(block: nn.Module, serial: nn.Module) -> Step:
    """Forward and backward of a block, which computes what `serial` does."""
    x = torch.randn(
        BATCH, TOKENS, HIDDEN, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    weight = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))

    def step() -> torch.Tensor:
        block.zero_grad()
        x.grad = None
        y = block(x)
        (y * weight).sum().backward()
        return y

    found = step().detach(), x.grad
    expected = serial(x)
    (gradient,) = torch.autograd.grad((expected * weight).sum(), x)
    torch.testing.assert_close(found, (expected.detach(), gradient), rtol=1e-3, atol=1e-3)
    return step


def blocks(
    ranks: Ranks, name: str, ours: Callable[[Comm], nn.Module], plan: dict, split: Callable
) -> dict[str, Step]:
    """The ways of a block of the serial layer: DTensor's by `plan`, and ours over both transports."""
    from torch.distributed.tensor.parallel import parallelize_module

    serial, theirs = (getattr(seeded_(TransformerLayer(HIDDEN, HEADS)), name) for _ in range(2))
    for block in (serial, theirs):
        seeded_(block)  # the names of the block alone, as ours
    split(theirs)
    return {
        "DTensor, gloo": step_of(parallelize_module(theirs, ranks.mesh, plan), serial),
        "ours, shared memory": step_of(ours(ranks.shared), serial),
        "ours, gloo": step_of(ours(ranks.gloo), serial),
    }


def mlp(ranks: Ranks) -> dict[str, Step]:
    """fc by columns, proj by rows."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    plan = {"fc": ColwiseParallel(), "proj": RowwiseParallel()}
    ours = lambda comm: tensor_parallel_(MLP(HIDDEN, device="meta"), comm)
    return blocks(ranks, "mlp", ours, plan, lambda block: None)


def attention(ranks: Ranks) -> dict[str, Step]:
    """By heads; the serial attention is told how many of them it has left."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    def split(block) -> None:
        block.groups //= ranks.shared.size

    plan = {"qkv": ColwiseParallel(), "proj": RowwiseParallel()}
    ours = lambda comm: tensor_parallel_(Attention(HIDDEN, HEADS, device="meta"), comm)
    return blocks(ranks, "attention", ours, plan, split)


def cross_entropy(ranks: Ranks) -> dict[str, Step]:
    """The loss of GPT-2's vocabulary, split: 512 tokens of fp32 logits."""
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.parallel import loss_parallel

    n = ranks.shared.size
    rank = ranks.shared.rank
    random = torch.Generator().manual_seed(0)
    whole = torch.randn(2 * BATCH * TOKENS, VOCAB, generator=random).requires_grad_()
    targets = torch.randint(0, VOCAB, whole.shape[:1], generator=random)
    (expected,) = torch.autograd.grad(nn.functional.cross_entropy(whole, targets), whole)

    def step_of_loss(
        loss: Callable, logits: torch.Tensor, own: torch.Tensor, context: Callable = nullcontext
    ) -> Step:
        def step() -> torch.Tensor:
            logits.grad = None
            with context():
                loss(logits).backward()
            return logits.grad

        found = step()
        torch.testing.assert_close(
            getattr(found, "_local_tensor", found), own, rtol=1e-4, atol=1e-7
        )
        return step

    def ours(loss: Callable, comm: Comm) -> Step:
        cut = uneven(VOCAB, n)
        part = whole.detach().split(cut, 1)[rank].clone().requires_grad_()
        return step_of_loss(
            lambda x: loss(x, targets, comm, VOCAB), part, expected.split(cut, 1)[rank]
        )

    theirs = distribute_tensor(whole.detach(), ranks.mesh, [Shard(1)]).requires_grad_()
    return {
        "loss_parallel, gloo": step_of_loss(
            lambda x: nn.functional.cross_entropy(x, targets),
            theirs,
            expected.chunk(n, 1)[rank],
            loss_parallel,
        ),
        "ours, shared memory": ours(vocab_cross_entropy, ranks.shared),
        "ours, gloo": ours(vocab_cross_entropy, ranks.gloo),
        "gathered, shared memory": ours(gathered_cross_entropy, ranks.shared),
    }


CASES: dict[str, Callable[[Ranks], dict[str, Step]]] = {
    "mlp": mlp,
    "attention": attention,
    "cross_entropy": cross_entropy,
}


def program(
    comm: Comm, store: str, repeats: int, names: list[str]
) -> dict[tuple[str, str], list[float]]:
    """Seconds by case, way and repeat."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", store=dist.FileStore(store, comm.size), rank=comm.rank, world_size=comm.size
    )
    ranks = Ranks(comm, TorchComm(), dist.init_device_mesh("cpu", (comm.size,)))
    ways = {(name, way): step for name in names for way, step in CASES[name](ranks).items()}
    times = times_of(comm, ways, repeats)
    dist.barrier()
    dist.destroy_process_group()
    return times


def measure(
    counts: list[int], repeats: int, names: list[str], run: Callable = program, kind: str = "tensor"
) -> dict[str, float]:
    """Print the table and the ratios; returns the ratios by name. run: gives the seconds; kind: begins the names."""
    ratios = {}
    for n in counts:
        with tempfile.TemporaryDirectory() as folder:
            times = launch(run, n, f"{folder}/store", repeats, names, timeout=120)[0]
        print(f"{n} ranks, forward and backward in ms: median [quartiles], the first one's over it")
        first: dict[str, list[float]] = {}
        for (name, way), own in times.items():
            theirs = first.setdefault(name, own)
            over = statistics.median(a / b for a, b in zip(theirs, own, strict=True))
            print(f"  {name:<14} {way:<24} {spread(own):<28} {over:.2f}", flush=True)
            if way == "ours, shared memory":
                ratios[f"{kind}_{name}_n={n}"] = over
    return report(ratios)


if __name__ == "__main__":
    args = options(__doc__, repeats=(7, 30), only=CASES)
    measure([2, 4], args.repeats, args.only)
