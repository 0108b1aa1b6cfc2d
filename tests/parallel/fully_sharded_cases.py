"""Models, optimizers and programs for the tests of stage 3."""

from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from minidist.models import mlp
from minidist.parallel.data import Sampler
from minidist.parallel.zero import FullySharded
from minidist.train import remat
from tests.largest import largest
from tests.parallel.cases import SAMPLES, data, made, mse


class Mine(torch.optim.Optimizer):
    """A user's own: elementwise, with a state, a decay and a rate of its own for each group."""

    def __init__(self, params, lr=0.05, decay=0.01):
        super().__init__(params, dict(lr=lr, decay=decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                seen = self.state[p].setdefault("seen", torch.ones_like(p))
                seen.mul_(0.9).add_(p.grad.abs())
                p.mul_(1 - group["lr"] * group["decay"]).addcdiv_(p.grad, seen, value=-group["lr"])


OPTIMIZERS = {
    "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=0.1),
    "mine": Mine,
}


def batches(drop_last, batch=12):
    order = torch.arange(SAMPLES)
    return [b for b in order.split(batch) if len(b) == batch or not drop_last]


def serial(name, optimizer, steps=20, drop_last=True, clip=None):
    """The state dict after training on one rank with whole batches."""
    model = made(name, 0)
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    x, y = data()
    for step in range(steps):
        part = batches(drop_last)[step % len(batches(drop_last))]
        optimizer.zero_grad()
        mse(model(x[part]), y[part]).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return model.state_dict()


def train(comm, name, optimizer, steps=20, drop_last=True, clip=None, **options):
    """The same over all ranks, which start from different seeds."""
    model = FullySharded(made(name, comm.rank), comm, **options)
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    x, y = data()
    parts = list(Sampler(SAMPLES, 12, comm, shuffle=False, drop_last=drop_last))
    for step in range(steps):
        part = parts[step % len(parts)]
        optimizer.zero_grad()
        model.weight = None if drop_last else len(part)
        mse(model(x[part]), y[part]).backward()
        assert not any(unit.whole for unit in model.units)
        if clip:
            model.clip_grad_norm_(clip)
        with comm.host:
            optimizer.step()
    return model.full_state_dict()


def far(ours, oracle):
    """The largest difference between two state dicts with the same names."""
    assert ours.keys() == oracle.keys()
    return largest((ours[name] - oracle[name]).abs().max().item() for name in oracle)


RECOMPUTED = {
    "": partial(checkpoint, use_reentrant=False),
    "reentrant": partial(checkpoint, use_reentrant=True),
    "ours": remat.checkpoint,
    "ours reentrant": remat.checkpoint_reentrant,
}


def recomputed(how):
    """The checkpoint that the words after the first one name."""
    return RECOMPUTED[how.partition(" ")[2]]


class Block(nn.Module):
    """A residual block, computed in one of several ways."""

    def __init__(self, features, how="plain"):
        super().__init__()
        self.a = nn.Linear(features, 2 * features)
        self.b = nn.Linear(2 * features, features)
        self.how = how

    def branch(self, x):
        return self.b(torch.tanh(self.a(x)))

    def forward(self, x):
        if self.how.startswith("inside"):
            return x + recomputed(self.how)(self.branch, x)
        if self.how == "dropout":
            return x + checkpoint(
                lambda x: self.branch(nn.functional.dropout(x, 0.5)), x, use_reentrant=False
            )
        return x + self.branch(x)


class Tower(nn.Module):
    """Blocks between two layers that belong to none. how: what is recomputed in backward, and where."""

    def __init__(self, how="plain", layers=4, features=5):
        super().__init__()
        self.first, self.last = nn.Linear(features, features), nn.Linear(features, features)
        self.layers, self.how = nn.ModuleList(Block(features, how) for _ in range(layers)), how

    def segment(self, x, first, end):
        for layer in self.layers[first:end]:
            x = layer(x)
        return x

    def forward(self, x):
        x, half = self.first(x), len(self.layers) // 2
        if self.how == "segments":
            x = checkpoint(self.segment, x, 0, half, use_reentrant=False)
            return self.last(checkpoint(self.segment, x, half, 2 * half, use_reentrant=False))
        for layer in self.layers:
            if self.how.startswith("outside"):
                x = recomputed(self.how)(layer, x)
            else:
                x = layer(layer(x)) if self.how == "twice" else layer(x)
        return self.last(x)


def tower(how="plain", seed=0):
    torch.manual_seed(seed)
    return Tower(how).double()


def rows(comm, x):
    """This rank's rows; as many for each."""
    each = len(x) // comm.size
    return x[comm.rank * each : (comm.rank + 1) * each]


WIDTHS = [1000] * 11  # 10,010,000 parameters
LAYER = 1000 * 1001


def large(device="meta"):
    return mlp(WIDTHS, device=device)
