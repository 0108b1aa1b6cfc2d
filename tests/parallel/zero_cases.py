"""The serial program that the stages of ZeRO are compared with, an optimizer as a user writes it, and ours."""

import functools

import torch

from minidist.parallel.data import Sampler
from minidist.parallel.zero import ShardedOptimizer
from tests.parallel.cases import SAMPLES, data, made, mse, replicas_equal


class Users(torch.optim.Optimizer):
    """A normalized step with momentum: looks at whole parameters; its states are of many kinds, also in the group."""

    def __init__(self, params, lr=0.05):
        super().__init__(params, {"lr": lr, "steps": 0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["steps"] += 1
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state |= {
                        "count": 0,
                        "norms": [0.5],
                        "pair": (1, None),
                        "more": {"m": torch.zeros_like(p), 7: 2.5},
                    }
                state["count"] += 1
                state["norms"].append(p.grad.norm().item() * 3)
                state["more"]["m"].mul_(0.9).add_(p.grad / (1 + p.norm() + p.grad.norm()))
                p.sub_(state["more"]["m"], alpha=group["lr"] * state["count"] ** -0.5)


OPTIMIZERS = {
    "momentum": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": functools.partial(torch.optim.AdamW, lr=0.02, weight_decay=0.1),
    "users": Users,
}


def batches_of(comm, batch, drop_last):
    return list(Sampler(SAMPLES, batch, comm, shuffle=False, drop_last=drop_last))


def losses(model, comm, batch=12, steps=20, drop_last=True, dtype=torch.float64):
    """(samples, loss) of this rank's part of each step."""
    x, y = data(dtype)
    batches = batches_of(comm, batch, drop_last)
    for step in range(steps):
        part = batches[step % len(batches)]
        yield len(part), lambda part=part: mse(model(x[part]), y[part])


class Alone:
    """What `Sampler` asks of a Comm of one rank."""

    rank, size = 0, 1


def serial(name, optimizer, batch=12, steps=20, drop_last=True):
    """Parameters after the steps, and the optimizer."""
    model = made(name, 0)
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    for _, loss in losses(model, Alone, batch, steps, drop_last):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    return list(model.parameters()), optimizer


def train(
    comm,
    name,
    optimizer,
    stage,
    batch=12,
    steps=20,
    drop_last=True,
    wrap=ShardedOptimizer,
    **options,
):
    """The same on this rank's part. Ranks start from different seeds."""
    model = made(name, comm.rank)
    optimizer = wrap(model.parameters(), OPTIMIZERS[optimizer], comm, stage, **options)
    for samples, loss in losses(model, comm, batch, steps, drop_last):
        optimizer.zero_grad()
        optimizer.weight = None if drop_last else samples
        loss().backward()
        optimizer.step()
    params = [p.detach() for p in model.parameters()]
    return params, replicas_equal(comm, params), optimizer.state_dict()
