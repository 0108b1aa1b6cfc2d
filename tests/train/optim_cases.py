"""A model whose layers differ in every way that matters, the four optimizers on it, and each way of sharding it."""

import torch
from torch import nn

from minidist.models import mlp
from minidist.parallel.zero import FullySharded, ShardedOptimizer
from minidist.train.optim import LAMB, LARS, SGD, AdamW, groups
from tests.largest import largest
from tests.parallel.cases import data, mse

STEPS = 4
WIDTHS = [6, 5, 4, 3]
OPTIMIZERS = {
    "sgd": (SGD, dict(lr=0.05, momentum=0.9, weight_decay=0.01)),
    "lars": (LARS, dict(lr=0.2, trust=0.1, weight_decay=0.01)),
    "adamw": (AdamW, dict(lr=0.02, weight_decay=0.1)),
    "lamb": (LAMB, dict(lr=0.05)),
}


def model(seed=0):
    """Its layers' weights are of very different lengths."""
    made = mlp(WIDTHS, seed=seed, dtype=torch.float64)
    with torch.no_grad():
        for i, p in enumerate(made.parameters()):
            p.mul_(3.0 ** (i % 3 - 1)).add_(0.01 * i)
    return made


def batches(steps=STEPS, samples=12):
    x, y = data()
    return [(x[:samples].roll(step, 0), y[:samples].roll(step, 0)) for step in range(steps)]


def serial(name, steps=STEPS):
    """{name: parameter} after the steps."""
    made = model()
    cls, how = OPTIMIZERS[name]
    optimizer = cls(groups(made), **how)
    for x, y in batches(steps):
        optimizer.zero_grad()
        mse(made(x), y).backward()
        optimizer.step()
    return {key: p.detach() for key, p in made.named_parameters()}


def mine(comm, x):
    """This rank's rows; the last ranks may have one less."""
    return x.tensor_split(comm.size)[comm.rank]


def zero_12(comm, name, stage, steps=STEPS):
    made = model(comm.rank)
    cls, how = OPTIMIZERS[name]
    optimizer = ShardedOptimizer(groups(made), cls, comm, stage, **how)
    for x, y in batches(steps):
        optimizer.zero_grad()
        optimizer.weight = len(mine(comm, x))
        (mse(made(mine(comm, x)), mine(comm, y))).backward()
        optimizer.step()
    return {key: p.detach() for key, p in made.named_parameters()}


def zero_3(comm, name, steps=STEPS, across=True, **options):
    """`across=False`: the norms of pieces, as if they were layers."""
    made = FullySharded(model(comm.rank), comm, **options)
    cls, how = OPTIMIZERS[name]
    which = groups(made)
    if not across:
        which = [group | {"split": ()} for group in which]
    extra = dict(across={"data": comm}) if name in ("lars", "lamb") else {}
    optimizer = cls(which, **how, **extra)
    for x, y in batches(steps):
        optimizer.zero_grad()
        made.weight = len(mine(comm, x))
        mse(made(mine(comm, x)), mine(comm, y)).backward()
        optimizer.step()
    return made.full_state_dict()


def far(ours, oracle):
    assert ours.keys() == oracle.keys()
    return largest((ours[key] - oracle[key]).abs().max().item() for key in oracle)


class Layers(nn.Module):
    """Random gradients without a model, for what needs none."""

    SHAPES = [(4, 3), (5,), (2, 3, 2), (3, 4), ()]

    def __init__(self):
        super().__init__()
        random = torch.Generator().manual_seed(0)
        self.all = nn.ParameterList(
            torch.randn(s, generator=random, dtype=torch.float64) * 3.0 ** (i - 2)
            for i, s in enumerate(self.SHAPES)
        )
        with torch.no_grad():
            self.all[3].zero_()  # a norm of 0

    def backward(self, step):
        """Gradients of a step; one layer's are 0 in step 2, and one has none in step 4."""
        random = torch.Generator().manual_seed(step + 1)
        for i, p in enumerate(self.all):
            g = torch.randn(p.shape, generator=random, dtype=torch.float64) * 10.0 ** (i - 2)
            p.grad = None if (step, i) == (4, 0) else g * 0 if (step, i) == (2, 2) else g


def net():
    """Layers of every kind."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3, bias=False), nn.Embedding(3, 2)
    ).double()
