"""Activation checkpointing: ours beside torch.utils.checkpoint, both of its forms.

    python -m benchmarks.remat [--quick]

A step is forward and backward of a GPT whose layers are checkpointed one by one, in one process, one thread, all ways
one after the other in every repeat. Times are seconds of this thread on the CPU, so that what else runs counts little.
The gradients of all ways are compared, bit for bit, before they are timed. `ratio NAME VALUE`: PyTorch's time over
ours, median of the ratios within a repeat; above 1, ours is faster. The small model has many operators of little work:
there the cost of checkpointing itself shows.

Then what the meter says of one step: peak bytes and FLOPs, each over those without checkpoints.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as torchs
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from benchmarks.data_parallel import spread
from benchmarks.options import options, report
from minidist.models import gpt, next_token_loss
from minidist.study import measure as metered
from minidist.train.remat import checkpoint, checkpoint_reentrant, checkpoint_sequential
from minidist.train.selective import ATTENTION, selective

aten = torch.ops.aten
PRODUCTS = [aten.addmm.default, aten.mm.default, aten.bmm.default]


class Size(NamedTuple):
    """A model and its batch."""

    layers: int
    hidden: int
    heads: int
    batch: int
    tokens: int
    vocab: int = 256


SIZES = {"small": Size(8, 64, 4, 4, 32), "large": Size(4, 256, 8, 4, 64)}


def plain(fn: Callable, x):
    return fn(x)


def layer_by_layer(form: Callable) -> Callable:
    """`run(layers, x)` with each layer checkpointed by `form`."""
    return lambda layers, x: functools.reduce(lambda x, layer: form(layer, x), layers, x)


CONTEXT = functools.partial(create_selective_checkpoint_contexts, PRODUCTS)
WAYS = {
    "no checkpoints": layer_by_layer(plain),
    "torch, hooks": layer_by_layer(functools.partial(torchs, use_reentrant=False)),
    "ours, hooks": layer_by_layer(checkpoint),
    "torch, reentrant": layer_by_layer(functools.partial(torchs, use_reentrant=True)),
    "ours, reentrant": layer_by_layer(checkpoint_reentrant),
    "torch, products saved": layer_by_layer(
        functools.partial(torchs, use_reentrant=False, context_fn=CONTEXT)
    ),
    "ours, products saved": layer_by_layer(selective(PRODUCTS, save=True)),
    "ours, attention repeated": layer_by_layer(selective(ATTENTION)),
    "ours, √L segments": lambda layers, x: checkpoint_sequential(layers, None, x),
}
PAIRS = {"hooks": "hooks", "reentrant": "reentrant", "products saved": "selective"}


def step_of(size: Size, run: Callable, device: str = "cpu") -> Callable[[], nn.Module]:
    """A training step without its optimizer, with dropout from the same seed each time."""
    words = dict(
        layers=size.layers,
        hidden=size.hidden,
        heads=size.heads,
        vocab=size.vocab,
        context=size.tokens,
    )
    model = gpt(**words, dropout=0.1, attention="explicit", device=device)
    x, y = (
        torch.arange(size.batch * size.tokens, device=device).reshape(size.batch, -1) % size.vocab
        for _ in "xy"
    )
    for p in model.parameters():
        p.grad = torch.zeros_like(p)

    def step() -> nn.Module:
        torch.manual_seed(0)
        for p in model.parameters():
            p.grad.zero_()
        next_token_loss(model.project(run(model.layers, model.embed(x))), y).backward()
        return model

    return step


def times_of(steps: dict[str, Callable], repeats: int) -> dict[str, list[float]]:
    """Seconds by way and repeat, in a new order each time; the first two repeats warm up."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + 2):
        names = list(steps)
        names = names[repeat % len(names) :] + names[: repeat % len(names)]
        for name in names:
            start = time.thread_time()
            steps[name]()
            if repeat > 1:
                times[name].append(time.thread_time() - start)
    return times


def compare(steps: dict[str, Callable]) -> None:
    """Raises AssertionError unless all ways give the same gradients to the bit."""
    expected = [p.grad.clone() for p in steps["no checkpoints"]().parameters()]
    for name, step in steps.items():
        same = all(
            torch.equal(p.grad, g) for p, g in zip(step().parameters(), expected, strict=True)
        )
        assert same, f"{name} has other gradients"


def measure(repeats: int, sizes: dict[str, Size] = SIZES) -> dict[str, float]:
    """Print the tables and the ratios; returns the ratios by name."""
    torch.set_num_threads(1)
    ratios = {}
    for kind, size in sizes.items():
        steps = {name: step_of(size, run) for name, run in WAYS.items()}
        compare(steps)
        times = times_of(steps, repeats)
        costs = {name: metered(step_of(size, run, "meta")) for name, run in WAYS.items()}
        whole = costs["no checkpoints"]
        print(
            f"{kind}: {size}; ms: median [quartiles]; peak bytes; peak and FLOPs over those without checkpoints"
        )
        for name, own in times.items():
            cost = costs[name]
            print(
                f"  {name:<26} {spread(own):<28} {cost.peak:>12,} {cost.peak / whole.peak:>6.3f} "
                f"{cost.flops / whole.flops:>6.3f}",
                flush=True,
            )
        for pair, called in PAIRS.items():
            ours, theirs = f"ours, {pair}", f"torch, {pair}"
            over = statistics.median(a / b for a, b in zip(times[theirs], times[ours], strict=True))
            ratios[f"remat_{called}_{kind}"] = over
            ratios[f"remat_{called}_{kind}_peak"] = costs[theirs].peak / costs[ours].peak
    return report(ratios)


if __name__ == "__main__":
    measure(options(__doc__, repeats=(9, 41)).repeats)
