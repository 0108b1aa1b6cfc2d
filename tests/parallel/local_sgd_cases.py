"""The serial program that Local SGD is compared with: n copies of the model in one place, averaged by hand."""

import functools

import torch

from minidist.comm import World, launch
from minidist.parallel.data import average_gradients
from minidist.parallel.local_sgd import LocalSGD
from minidist.split import bounds, uneven
from tests.largest import largest
from tests.parallel.cases import SAMPLES, data, difference, made, mse, replicas_equal

OPTIMIZERS = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.1, weight_decay=0.01),
    "momentum": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "nesterov": functools.partial(
        torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01
    ),
    "adamw": functools.partial(torch.optim.AdamW, lr=0.02, weight_decay=0.1),
}


def parts(n, step, batch, drop_last):
    """Indices of each rank's samples in this step."""
    batches = [b for b in torch.arange(SAMPLES).split(batch) if len(b) == batch or not drop_last]
    whole = batches[step % len(batches)]
    return [whole[first:end] for first, end in bounds(uneven(len(whole), n))]


@torch.no_grad()
def mean_(tensors, weights):
    """Each of n tensors becomes their weighted mean."""
    total = sum(x * w for x, w in zip(tensors, weights, strict=True)) / sum(weights)
    for x in tensors:
        x.copy_(total)


def oracle(name, optimizer, n, H, steps=20, batch=12, drop_last=True, states="keep", start=0):
    """Parameters of every rank after the steps; up to `start` gradients are averaged. Equal parts: equal weights."""
    models = [made(name, 0) for _ in range(n)]
    optimizers = [OPTIMIZERS[optimizer](m.parameters()) for m in models]
    x, y = data()
    done = [0] * n
    for step in range(steps):
        mine = parts(n, step, batch, drop_last)
        for model, part in zip(models, mine, strict=True):
            model.zero_grad()
            if len(part):
                mse(model(x[part]), y[part]).backward()
        if step < start:
            for same in zip(*(m.parameters() for m in models), strict=True):
                if any(p.grad is not None for p in same):
                    mean_([zeros_if_none(p) for p in same], [len(part) for part in mine])
        for optimizer_, part in zip(optimizers, mine, strict=True):
            if len(part) or step < start:
                optimizer_.step()
        done = (
            [0] * n if step < start else [d + len(part) for d, part in zip(done, mine, strict=True)]
        )
        if step >= start and (step + 1 - start) % H == 0:
            for same in zip(*(m.parameters() for m in models), strict=True):
                mean_(same, done)
            treat(models, optimizers, states, done)
            done = [0] * n
    return [list(m.parameters()) for m in models]


def zeros_if_none(p):
    p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    return p.grad


def treat(models, optimizers, states, weights):
    """Every rank's states at an average."""
    for same in zip(*(m.parameters() for m in models), strict=True):
        mine = [optimizer.state[p] for optimizer, p in zip(optimizers, same, strict=True)]
        for key in [key for key in mine[0] if key != "step" and states == "average"]:
            mean_([state[key] for state in mine], weights)
        for state in mine if states == "reset" else ():
            state.clear()


def train(
    comm,
    name,
    optimizer,
    H,
    steps=20,
    batch=12,
    drop_last=True,
    start=0,
    wrap=LocalSGD,
    dense=True,
    **options,
):
    """Ours on this rank's part. Ranks start from different seeds. dense: before the switch gradients are averaged."""
    module = made(name, comm.rank)
    wrapped = wrap(OPTIMIZERS[optimizer](module.parameters()), comm, H, start=start, **options)
    x, y = data()
    for step in range(steps):
        part = parts(comm.size, step, batch, drop_last)[comm.rank]
        wrapped.zero_grad()
        loss = mse(module(x[part]), y[part])
        loss.backward()
        if step < start and dense:
            unused = [p for p in module.parameters() if p.grad is None]
            average_gradients(comm, module, None if drop_last else len(part))
            for p in unused:
                p.grad = None  # for the optimizer's decay; it is unused on every rank
        elif not drop_last:
            wrapped.weight = len(part)
        wrapped.step(loss=loss)
    return [p.detach() for p in module.parameters()], replicas_equal(
        comm, list(module.parameters())
    )


def apart(results, expected):
    """The largest difference on any rank."""
    return largest(difference(params, expected[rank]) for rank, (params, *_) in enumerate(results))


def both(program, n, *args, **kwargs):
    """The results of a World; of 3 ranks, those of processes, too."""
    runs = [World(n).run(program, *args, **kwargs)]
    return [*runs, launch(program, n, *args, **kwargs)] if n == 3 else runs
