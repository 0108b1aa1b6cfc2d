"""Train a network on the digits until the loss is small enough, by each way to talk less: the program of `slow_link`.

Under torchrun it prints one line of JSON with what rank 0 has seen (`slow_link` starts it so, on two hosts):

    torchrun --nproc-per-node 2 -m benchmarks.slow_train [WAY …]

In a World the same program runs on a virtual clock. Time counts from step to step, on the slowest rank; looking at the
test set is left out, and comes every 8 steps, when Local SGD has just averaged.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from minidist.collectives import all_reduce_, barrier
from minidist.comm import from_env
from minidist.models import mlp
from minidist.parallel.compress import DGC, Half, PowerSGD
from minidist.parallel.data import DataParallel, Sampler
from minidist.parallel.local_sgd import LocalSGD
from minidist.tasks import Task, digits

WIDTHS = [64, 1024, 1024, 10]  # 1,126,410 weights: 4.5 MB of gradients
BATCH = 128
RATE = 0.02
MOMENTUM = 0.9  # samples of a step, all ranks together
EVERY = 8
AT_MOST = 320
TARGET = 0.20  # steps between two looks, steps, loss on the test set


def sgd(module: nn.Module, momentum: float = MOMENTUM) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), RATE, momentum)


def dense(comm, module: nn.Module, **options):
    """Data parallelism: a model and its optimizer."""
    model = DataParallel(module, comm, **options)
    return model, sgd(module)


def dgc(comm, module: nn.Module):
    """Its momentum is its own."""
    return DataParallel(module, comm, compression=DGC(0.999, MOMENTUM)), sgd(module, 0.0)


def local(comm, module: nn.Module):
    return module, LocalSGD(sgd(module), comm, H=EVERY)


WAYS: dict[str, Callable] = {
    "dense": dense,
    "fp16": lambda comm, module: dense(comm, module, compression=Half()),
    "DGC 99.9 %": dgc,
    "PowerSGD": lambda comm, module: dense(comm, module, compression=PowerSGD(rank=2)),
    "Local SGD": local,
}


def steps_of(comm, way: str, task: Task, everyone=None):
    """A generator of steps of training, endless, and the module that learns.

    comm: who talk.  everyone: who share a batch, where they are more."""
    module = mlp(WIDTHS, dtype=task.x.dtype, device=comm.device.type)
    model, optimizer = WAYS[way](comm, module)
    sampler = Sampler(len(task.x), BATCH, everyone or comm)

    def steps():
        epoch = 0
        while True:
            sampler.set_epoch(epoch)
            if isinstance(getattr(model, "compression", None), DGC):
                model.compression.set_epoch(epoch)
            for part in sampler:
                optimizer.zero_grad()
                cross_entropy(model(task.x[part]), task.y[part]).backward()
                optimizer.step()
                yield
            epoch += 1

    return steps(), module


def timed(comm, steps, count: int) -> float:
    """Seconds of so many steps, of the slowest rank."""
    barrier(comm)
    start = comm.now()
    for _ in range(count):
        next(steps)
    took = torch.tensor(comm.now() - start, dtype=torch.float64)
    return all_reduce_(comm, took, "max").item()


def until(comm, way: str, task: Task, target: float = TARGET, at_most: int = AT_MOST) -> dict:
    """Train until the loss is at most `target`: steps, seconds, and the losses at each look."""
    steps, module = steps_of(comm, way, task)
    seconds, losses = 0.0, []
    while not losses or (losses[-1] > target and len(losses) * EVERY < at_most):
        seconds += timed(comm, steps, EVERY)
        with torch.no_grad():
            loss = cross_entropy(module(task.test_x), task.test_y).double()
        # hosts may round differently, and must agree
        losses.append(all_reduce_(comm, loss, "max").item())
    return {"steps": len(losses) * EVERY, "seconds": seconds, "loss": losses[-1], "losses": losses}


def alone(comm, way: str, task: Task) -> float:
    """Seconds of a step of this way where nobody listens: all that it computes, on both hosts at a time."""
    steps, _ = steps_of(comm.split(comm.rank), way, task, comm)
    return statistics.median(timed(comm, steps, EVERY) for _ in range(4)) / EVERY


def latency(comm) -> float:
    """Seconds that a message of 8 bytes takes, median."""
    x, there = torch.zeros(1, dtype=torch.float64), (comm.rank + 1) % comm.size
    times = []
    for _ in range(50):
        barrier(comm)
        start = comm.now()
        comm.sendrecv(x, there, torch.empty_like(x), there)
        times.append(comm.now() - start)
    return statistics.median(times)


def measured(comm, ways: list[str], target: float, at_most: int) -> dict:
    """All that a link shows: latency, and of each way the seconds of a step alone, and until the loss."""
    task = digits(torch.float32)
    found = {
        way: {"alone": alone(comm, way, task)} | until(comm, way, task, target, at_most)
        for way in ways
    }
    return {"alpha": latency(comm), "ways": found}


def main(arguments: list[str]) -> None:
    torch.set_num_threads(1)
    target, at_most, *ways = arguments
    comm = from_env(checked=False)  # with headers gloo cannot send both ways at once: see torchdist
    found = measured(comm, ways, float(target), int(at_most))
    if comm.rank == 0:
        print(f"measured {json.dumps(found)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
