"""A model with large, small, strided and unused parameters, trained with a compression: over ranks, and by an oracle.

An oracle is told every rank's gradients, {name: numpy array}, times their shares, and returns the averages. It is
written with numpy, from the papers, and shares no code with ours.
"""

import copy

import numpy as np
import torch
from torch import nn

from minidist.comm import World, launch
from minidist.parallel.data import DataParallel
from tests.largest import largest
from tests.parallel.cases import difference, replicas_equal

STEPS, LR = 6, 0.05
RUNS = {
    "world": lambda n, *args: World(n).run(*args),
    "processes": lambda n, program, *args: launch(program, n, *args),
}
EVERYWHERE = [*(("world", n) for n in (1, 2, 3, 4)), ("processes", 3)]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(12, 20), nn.Linear(20, 14)
        self.strided = nn.Parameter(torch.randn(14, 9).t() / 4)
        self.cube = nn.Parameter(torch.randn(9, 4, 2) / 3)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.never = nn.Linear(6, 6)

    def forward(self, x):
        x = nn.functional.linear(torch.tanh(self.second(torch.tanh(self.first(x)))), self.strided)
        return self.scale * torch.einsum("bi,ijk->bjk", x, self.cube)


def net(seed=0):
    torch.manual_seed(seed)
    return Net().double()


def loss_of(model, rank, step, size=3):
    random = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(size, 12, generator=random, dtype=torch.float64)
    return (model(x) - x[:, :8].view(size, 4, 2)).square().mean()


def train(comm, compression, steps=STEPS, weighted=False, epochs=False, options={}):  # noqa: B006
    """The parameters after every step, whether the replicas are equal at the end, and the state.

    options: of DataParallel.  epochs: each step is one.
    """
    model = DataParallel(net(comm.rank), comm, compression=compression, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    seen = []
    for step in range(steps):
        if epochs:
            compression.set_epoch(step)
        model.weight = comm.rank + 1 if weighted else None
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        loss_of(model, comm.rank, step, comm.rank + 1 if weighted else 3).backward()
        assert model.module.never.weight.grad is None
        optimizer.step()
        seen.append([p.detach().clone() for p in model.parameters()])
    return (
        seen,
        replicas_equal(comm, list(model.parameters())),
        copy.deepcopy(compression.state_dict()),
    )


def by_oracle(oracle, n, steps=STEPS, weighted=False, order=None):
    """The parameters after every step. order: the names as they lie in the bucket; None: as they are registered."""
    model, seen = net(), []
    sizes = [r + 1 if weighted else 3 for r in range(n)]
    named = {name: p for name, p in model.named_parameters() if not name.startswith("never")}
    named = {name: named[name] for name in order or named}
    for step in range(steps):
        grads = []
        for rank, size in enumerate(sizes):
            found = torch.autograd.grad(loss_of(model, rank, step, size), list(named.values()))
            grads.append(
                {
                    name: g.numpy() * (size / sum(sizes))
                    for name, g in zip(named, found, strict=True)
                }
            )
        averages = oracle(step, grads)
        with torch.no_grad():
            for name, p in named.items():
                p.sub_(torch.from_numpy(np.array(averages[name])), alpha=LR)
        seen.append([p.detach().clone() for p in model.parameters()])
    return seen


def worst(results, expected):
    """How far the parameters of any rank are from the oracle's, at any step. The replicas are equal."""
    assert all(same for _, same, _ in results)
    return largest(
        difference(a, b) for seen, _, _ in results for a, b in zip(seen, expected, strict=True)
    )


def a_step(n, program, *args, device="cpu"):
    """Bytes of the fourth step of `program(comm, …, steps)`, all ranks together."""
    four, three = (
        World(n, device=device).run(program, *args, steps).trace.bytes_sent() for steps in (4, 3)
    )
    return four - three


class Momentum:
    """Momentum SGD with the averages of all ranks: what a compression is compared with where it should be exact."""

    def __init__(self, m):
        self.m = m
        self.u = {}

    def __call__(self, step, grads):
        found = {}
        for name in grads[0]:
            g = sum(of[name] for of in grads)
            self.u[name] = self.m * self.u.get(name, 0) + g
            found[name] = self.u[name]
        return found
