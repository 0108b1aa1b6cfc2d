"""Models in parts, the serial loop over micro-batches that they are compared with, and ours."""

import functools
import itertools

import torch
from torch import nn

from minidist.comm import World
from minidist.models import seeded_
from minidist.parallel.pipeline import Pipeline
from minidist.parallel.schedules import gpipe, interleaved, naive, one_f_one_b, zb_h1, zb_h2
from minidist.parallel.simulate import zb_auto
from minidist.split import bounds, uneven
from tests.largest import largest

SCHEDULES = {
    "naive": naive,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "h1": zb_h1,
    "h2": zb_h2,
    "auto": zb_auto,
}


def chunks_of(name):
    return 2 if name == "interleaved" else 1


def data(samples, inputs=5, outputs=3, dtype=torch.float64):
    random = torch.Generator().manual_seed(samples)
    x = torch.randn(samples, inputs, generator=random, dtype=dtype)
    return x, torch.randn(samples, outputs, generator=random, dtype=dtype)


def mse(y, target):
    return ((y - target) ** 2).mean()


def layers(parts, inputs=5, outputs=3):
    """As many layers as parts, each of another width."""
    widths = [inputs, *(3 + (7 * i) % 5 for i in range(1, parts)), outputs]
    made = [
        nn.Sequential(nn.Linear(a, b, dtype=torch.float64), nn.Tanh())
        for a, b in itertools.pairwise(widths)
    ]
    return seeded_(nn.Sequential(*made))


def serial(model, x, y, M, loss_fn=mse, order=None):
    """Losses of the micro-batches; gradients are left in the model."""
    losses = {}
    sizes = uneven(len(x), M)
    for m in order or range(M):
        first, end = bounds(sizes)[m]
        loss = loss_fn(model(x[first:end]), y[first:end])
        (loss * (sizes[m] / len(x))).backward()
        losses[m] = loss.detach()
    return [losses[m] for m in range(M)]


def own(comm, model, v):
    """This rank's chunks of a Sequential of S·v parts."""
    return [model[c * comm.size + comm.rank] for c in range(v)]


def gradients(module):
    return {name: p.grad for name, p in module.named_parameters()}


def run(comm, schedule, M, batch, v=1, steps=1, make=layers, loss_fn=mse, **kwargs):
    """(losses, {parameter of the whole model: gradient} of this rank, peak) after `steps` equal steps."""
    mine = own(comm, make(comm.size * v), v)
    pipeline = Pipeline(mine, comm, schedule, loss_fn, **kwargs)
    x, y = batch[0] if pipeline.first_stage else None, batch[1] if pipeline.last_stage else None
    for _ in range(steps):
        losses = pipeline.step(M, x, y)
    found = {}
    for chunk, module in enumerate(mine):
        part = chunk * comm.size + comm.rank
        found |= {f"{part}.{name}": grad for name, grad in gradients(module).items()}
    return losses, found, pipeline.peak


def together(results):
    """Losses of the last rank, and all ranks' gradients."""
    assert all(losses is None for losses, *_ in results[:-1])
    return results[-1][0], functools.reduce(dict.__or__, (found for _, found, *_ in results))


def difference(found, model):
    """The largest difference to the gradients of the serial model; 0.0 means bit for bit."""
    whole = gradients(model)
    assert set(found) == set(whole)
    return largest((found[name] - grad).abs().max().item() for name, grad in whole.items())


def compared(name, S, M, runner=lambda S, *args: World(S).run(*args)):
    """One schedule on S stages with M micro-batches of uneven sizes, beside the serial loop over them.

    Returns (largest difference of a gradient or loss, 0.0 for bit for bit; each rank's peak in flight).
    runner(S, program, *args): what runs it.
    """
    v, batch = chunks_of(name), data(2 * M + 1)
    model = layers(S * v)
    oracle = serial(model, *batch, M)
    results = runner(S, run, SCHEDULES[name], M, batch, v)
    losses, found = together(results)
    worst = largest((a - b).abs().item() for a, b in zip(losses, oracle, strict=True))
    return largest(worst, difference(found, model)), [peak for *_, peak in results]


def fits(name, S, M):
    """Whether there is such a schedule: interleaving needs S to divide M."""
    return name != "interleaved" or M % S == 0
