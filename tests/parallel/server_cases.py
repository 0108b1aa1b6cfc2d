"""The serial program that a parameter server is compared with, and ours on the same shards of the same batches."""

import torch

from minidist.parallel.server import ParameterServer
from minidist.split import bounds, uneven
from tests.parallel.cases import SAMPLES, data, made, mse
from tests.parallel.zero_cases import OPTIMIZERS

BATCH, STEPS = 12, 6


def shards(n, batch=BATCH, steps=STEPS):
    """For each step the n workers' (first, end) of the data, which comes round again."""
    places = [(step * batch) % (SAMPLES - batch + 1) for step in range(steps)]
    return [[(place + a, place + b) for a, b in bounds(uneven(batch, n))] for place in places]


def serial(name, optimizer, n, batch=BATCH, steps=STEPS):
    """Parameters of one rank that computes the n shards' gradients, adds them in rank order and divides."""
    model, (x, y) = made(name, 0), data()
    stepper, params = OPTIMIZERS[optimizer](model.parameters()), list(model.parameters())
    weighted = batch % n > 0
    for parts in shards(n, batch, steps):
        totals = [None] * len(params)
        for first, end in parts:
            model.zero_grad()
            mse(model(x[first:end]), y[first:end]).backward()
            for i, p in enumerate(params):
                if p.grad is not None and end > first:
                    g = p.grad * (end - first) if weighted else p.grad
                    totals[i] = g if totals[i] is None else totals[i] + g
        for p, total in zip(params, totals, strict=True):
            p.grad = None if total is None else total / (batch if weighted else n)
        stepper.step()
    return [p.detach() for p in params]


def train(
    comm,
    name,
    optimizer,
    servers=1,
    mode="sync",
    bound=None,
    batch=BATCH,
    steps=STEPS,
    die=(),
    burn=(),
    pause=None,
    **kwargs,
):
    """(parameters, report) of this rank, which starts with parameters of its own.

    die, burn: {rank: step} at which a worker, or a server, fails.  pause(): called in each step of a worker.
    A worker's values are (seconds at the start of a step, at its end).
    """
    model, (x, y) = made(name, comm.rank), data()
    server = ParameterServer(model, comm, OPTIMIZERS[optimizer], servers, mode, bound, **kwargs)
    if comm.rank in burn:
        fail_at(server, burn[comm.rank])
    n = server.workers
    mine = server.worker
    values = []

    def step(part):
        start, (first, end) = comm.now(), part
        if comm.rank in die and die[comm.rank] == len(values):
            raise ValueError(f"worker {mine} fails")
        if pause is not None:
            pause()
        if mode == "sync" and batch % n:
            server.weight = end - first
        mse(model(x[first:end]), y[first:end]).backward()
        values.append((start, comm.now()))
        return values[-1]

    batches = None if mine is None else [parts[mine] for parts in shards(n, batch, steps)]
    report = server.train(batches, step)
    return [p.detach() for p in model.parameters()], report


def fail_at(server, step):
    """The optimizer of a server raises at its step number `step`."""

    def hook(*_):
        if server.shard.version == step:
            raise RuntimeError(f"server {server.server} fails")

    server.shard.optimizer.register_step_pre_hook(hook)


def equal(ours, oracle):
    """Bit for bit."""
    return all(torch.equal(a, b) for a, b in zip(ours, oracle, strict=True))
