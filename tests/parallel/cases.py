"""Models that are hard to train in parallel, the serial program that they are compared with, and ours."""

import torch
from torch import nn

from minidist.collectives import all_gather
from minidist.models import mlp
from minidist.parallel.data import DataParallel, Sampler, average_gradients
from tests.largest import largest

FEATURES = 6
CLASSES = 3
SAMPLES = 26


def data(dtype=torch.float64):
    random = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, FEATURES, generator=random, dtype=torch.float64)
    return x.to(dtype), torch.randn(SAMPLES, CLASSES, generator=random, dtype=torch.float64).to(
        dtype
    )


class Hard(nn.Module):
    """Tied, frozen, strided, scalar, never used, and shared twice in a forward: all in one."""

    def __init__(self):
        super().__init__()
        self.first, self.again = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.again.weight = self.first.weight
        self.frozen = nn.Linear(FEATURES, FEATURES).requires_grad_(False)
        self.strided = nn.Parameter(torch.randn(FEATURES, CLASSES).t())
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.never = nn.Linear(2, 2)

    def forward(self, x):
        x = torch.tanh(self.frozen(self.again(torch.tanh(self.first(x)))))
        return self.scale * nn.functional.linear(self.first(x), self.strided)


class Mixed(nn.Module):
    """Parameters of two dtypes."""

    def __init__(self):
        super().__init__()
        self.low, self.high = (
            nn.Linear(FEATURES, 5, dtype=torch.float32),
            nn.Linear(5, CLASSES, dtype=torch.float64),
        )

    def forward(self, x):
        return self.high(self.low(x.float()).double())


MODELS = {
    "mlp": lambda: mlp([FEATURES, 5, CLASSES], dtype=torch.float64),
    "hard": lambda: Hard().double(),
    "mixed": Mixed,
}


def made(name, seed):
    torch.manual_seed(seed)
    return MODELS[name]()


def mse(prediction, y):
    return ((prediction - y) ** 2).mean()


def gradients(module):
    return {
        name: None if p.grad is None else p.grad.clone() for name, p in module.named_parameters()
    }


def serial(name, batch, steps, drop_last=True):
    """Gradients of the last step and the parameters after it, of one rank with whole batches."""
    model = made(name, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = data()
    order = torch.arange(SAMPLES)
    batches = [b for b in order.split(batch) if len(b) == batch or not drop_last]
    for step in range(steps):
        part = batches[step % len(batches)]
        optimizer.zero_grad()
        mse(model(x[part]), y[part]).backward()
        optimizer.step()
    return gradients(model), list(model.parameters())


def naive(comm, module, weight):
    average_gradients(comm, module, weight)


def train(
    comm,
    name,
    batch,
    steps,
    drop_last=True,
    how="DataParallel",
    wrapper=DataParallel,
    average=naive,
):
    """The same on this rank's part. Ranks start from different seeds."""
    module = made(name, comm.rank if how == "DataParallel" else 0)
    model = wrapper(module, comm) if how == "DataParallel" else module
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = data()
    batches = list(Sampler(SAMPLES, batch, comm, shuffle=False, drop_last=drop_last))
    for step in range(steps):
        part = batches[step % len(batches)]
        optimizer.zero_grad()
        if how == "DataParallel":
            model.weight = None if drop_last else len(part)
        mse(model(x[part]), y[part]).backward()
        if how == "naive":
            average(comm, module, None if drop_last else len(part))
        optimizer.step()
    same = replicas_equal(comm, list(module.parameters()))
    return gradients(module), list(module.parameters()), same


def replicas_equal(comm, tensors):
    """Bit for bit."""
    flat = [t.detach().reshape(-1).contiguous().view(torch.uint8) for t in tensors]
    return all(
        torch.equal(row, rows[0])
        for rows in (all_gather(comm, f[None]) for f in flat)
        for row in rows
    )


def difference(ours, oracle):
    """The largest difference of gradients or parameters; infinite if one has a gradient and the other has none."""
    if isinstance(ours, dict):
        assert list(ours) == list(oracle)
        ours, oracle = ours.values(), oracle.values()
    return largest(
        (
            float("inf")
            if (a is None) != (b is None)
            else 0.0
            if a is None
            else (a - b).abs().max().item()
        )
        for a, b in zip(ours, oracle, strict=True)
    )


def with_reducer(kind):
    """A DataParallel that has this kind of Reducer."""

    class Wrapped(DataParallel):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self._reducer.unwatch()
            self._reducer.__class__ = kind
            self._reducer.watch(self.module.parameters())

    return Wrapped
