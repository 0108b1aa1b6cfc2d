"""PowerSGD: beside PyTorch's hook, and against the paper's algorithm in numpy."""

import numpy as np
import pytest
import torch
from torch import nn

from minidist.comm import World, launch
from minidist.models import mlp
from minidist.parallel.data import DataParallel
from minidist.train.compress import PowerSGD
from tests.largest import largest
from tests.parallel.cases import difference
from tests.train.compress.cases import EVERYWHERE, RUNS, Momentum, by_oracle, train, worst

# in the bucket
ORDER = ["second.weight", "second.bias", "first.weight", "first.bias", "scale", "cube", "strided"]
OPTIONS = {  # ours: rank, start, error feedback, warm start, seed
    "rank 1": (1, 2, True, True, 0),
    "rank 3, cold": (3, 3, True, False, 5),
    "rank 2, no feedback": (2, 4, False, True, 1),
}


class Oracle:
    """Vogels et al. 2019, Algorithms 1 and 2, for matrices that are worth it: the mean over all nodes at each place."""

    def __init__(self, rank, seed=0, feedback=True):
        self.rank = rank
        self.Q = {}
        self.errors = {}
        self.feedback = feedback
        self.random = torch.Generator().manual_seed(
            np.random.RandomState(seed).randint(1_000_000_000)
        )

    def __call__(self, step, grads):
        n, averages = len(grads), Momentum(0)(step, grads)
        for name in ORDER:
            if averages[name].ndim < 2:
                continue
            rows = averages[name].shape[0]
            M = [
                n * of[name].reshape(rows, -1) + self.errors.get((k, name), 0)
                for k, of in enumerate(grads)
            ]
            columns = M[0].shape[1]
            if 2 * self.rank * (rows + columns) >= rows * columns:
                continue
            if name not in self.Q:
                self.Q[name] = torch.randn(
                    columns, self.rank, generator=self.random, dtype=torch.float64
                ).numpy()
            P = self.orthogonal(sum(m @ self.orthogonal(self.Q[name]) for m in M) / n)
            self.Q[name] = sum(m.T @ P for m in M) / n
            product = P @ self.Q[name].T
            if self.feedback:
                self.errors.update({(k, name): m - product for k, m in enumerate(M)})
            averages[name] = product.reshape(averages[name].shape)
        return averages

    def orthogonal(self, P):
        columns = []
        for p in P.T:
            for c in columns:
                p = p - (c @ p) * c
            columns.append(p / np.sqrt(p @ p))
        return np.stack(columns, 1)


@pytest.mark.parametrize(("run", "n"), EVERYWHERE)
@pytest.mark.parametrize("rank", [1, 2])
def test_the_papers_algorithm(run, n, rank):
    results = RUNS[run](n, train, PowerSGD(rank, seed=3))
    assert worst(results, by_oracle(Oracle(rank, 3), n)) < 1e-10


def test_without_error_feedback():
    results = World(3).run(train, PowerSGD(1, error_feedback=False))
    assert worst(results, by_oracle(Oracle(1, feedback=False), 3)) < 1e-10
    assert worst(results, by_oracle(Oracle(1), 3)) > 1e-4


def test_before_the_start_and_with_full_rank_it_is_exact():
    for ours in (PowerSGD(start=6), PowerSGD(rank=20, min_rate=0)):
        assert worst(World(3).run(train, ours), by_oracle(Momentum(0), 3)) < 1e-12


def torchs(module, comm, rank, start, feedback, warm, seed):
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
        PowerSGDState,
        powerSGD_hook,
    )

    model = nn.parallel.DistributedDataParallel(module, process_group=comm.group)
    state = PowerSGDState(
        comm.group, rank, start, use_error_feedback=feedback, warm_start=warm, random_seed=seed
    )
    model.register_comm_hook(state, powerSGD_hook)
    return model


def ours(module, comm, rank, start, feedback, warm, seed):
    compression = PowerSGD(rank, start, error_feedback=feedback, warm_start=warm, seed=seed)
    return DataParallel(module, comm, compression=compression)


def trained(comm, wrap, options, steps=20):
    """One bucket: with several, torch's hook waits for gloo in gloo's own two threads, and may hang."""
    model = wrap(mlp([16, 40, 40, 24, 10], dtype=torch.float64), comm, *options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        x = torch.randn(
            8,
            16,
            generator=torch.Generator().manual_seed(10 * step + comm.rank),
            dtype=torch.float64,
        )
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def beside(comm, cases):
    """{case: how far ours are from torch's after 20 steps}, and how far torch's are from exact averages."""
    found = {
        case: difference(*(trained(comm, wrap, OPTIONS[case]) for wrap in (ours, torchs)))
        for case in cases
    }
    exact = difference(
        *(trained(comm, ours, OPTIONS[cases[0]][:1] + (start, True, True, 0)) for start in (2, 99))
    )
    return found, exact


@pytest.mark.parametrize("n", [2, 3])
def test_beside_pytorchs_hook(n):
    for found, exact in launch(
        beside, n, list(OPTIONS) if n == 2 else ["rank 1"], transport="gloo"
    ):
        assert largest(found.values()) < 1e-6 < 1e-3 < exact


def test_a_parameter_that_comes_late_draws_anew():
    def program(comm):
        net = mlp([20, 30, 20], seed=comm.rank)
        net[2].requires_grad_(False)
        model = DataParallel(net, comm, compression=PowerSGD(2))
        for step in range(4):
            net[2].requires_grad_(step > 1)
            model.zero_grad()
            model(torch.ones(2, 20)).square().sum().backward()
        return model.compression.of("2.weight")["q"], model.compression.draws

    one, other = World(2).run(program)
    assert torch.equal(one[0], other[0]) and one[1] == 2


def test_a_layer_that_is_not_reached_is_not_nan():
    def program(comm):
        net = mlp([20, 30, 20])
        model = DataParallel(net, comm, compression=PowerSGD(2))
        for _ in range(2):
            (model(torch.ones(2, 20)) * 0).sum().backward()
        return [p.grad for p in net.parameters()]

    assert all((g == 0).all() for g in World(2).run(program)[0])


@pytest.mark.parametrize("options", [{"rank": 0}, {"start": -1}])
def test_what_cannot_be(options):
    with pytest.raises(ValueError, match=r"not 0.*not 0|not 1.*not -1"):
        PowerSGD(**options)
