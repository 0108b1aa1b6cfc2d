"""Slow momentum against the paper's algorithm, written once more for n copies in one place."""

import pytest
import torch

from minidist.comm import World
from minidist.train.local_sgd import LocalSGD
from tests.parallel.cases import data, difference, made, mse
from tests.train.local_sgd.cases import OPTIMIZERS, apart, both, oracle, parts, train


def algorithm_1(n, tau, beta, alpha, optimizer="sgd", rates=None):
    """SlowMo, algorithm 1: 12 steps. rates: γ of each step, in place of the optimizer's."""
    models = [made("hard", 0) for _ in range(n)]
    bases = [OPTIMIZERS[optimizer](m.parameters()) for m in models]
    x, y = data()
    u = {}
    for t in range(12 // tau):
        start = [p.detach().clone() for p in models[0].parameters()]
        for k in range(tau):
            for i, (model, base) in enumerate(zip(models, bases, strict=True)):
                gamma = base.param_groups[0]["lr"] = (
                    rates[t * tau + k] if rates else base.param_groups[0]["lr"]
                )
                model.zero_grad()
                part = parts(n, t * tau + k, 12, True)[i]
                mse(model(x[part]), y[part]).backward()
                base.step()
        for j, same in enumerate(zip(*(m.parameters() for m in models), strict=True)):
            average = torch.stack([p.detach() for p in same]).mean(0)
            u[j] = beta * u.get(j, 0) + (start[j] - average) / gamma
            for p in same:
                p.data = start[j] - alpha * gamma * u[j]
    return list(models[0].parameters())


@pytest.mark.parametrize(("beta", "alpha"), [(0.5, 1.0), (0.7, 0.5), (0.0, 0.5)])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
def test_algorithm_1(optimizer, beta, alpha):
    for n, tau in ((1, 3), (3, 4)):
        results = World(n).run(
            train, "hard", optimizer, tau, 12, slow_momentum=beta, slow_rate=alpha
        )
        expected = algorithm_1(n, tau, beta, alpha, optimizer)
        assert all(difference(mine, expected) < 1e-11 and equal for mine, equal in results)


def test_in_both_worlds():
    for results in both(train, 3, "hard", "sgd", 4, 12, slow_momentum=0.6):
        assert all(
            difference(mine, algorithm_1(3, 4, 0.6, 1.0)) < 1e-12 and equal
            for mine, equal in results
        )


def test_without_it_is_local_sgd():
    assert (
        apart(World(2).run(train, "hard", "sgd", 4, slow_momentum=0.0), oracle("hard", "sgd", 2, 4))
        < 1e-13
    )


class Unscaled(LocalSGD):
    """Adds the way itself to the momentum, not the way over the rate."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._slow.step = lambda optimizer, params: self._unscaled(params)

    def _unscaled(self, params):
        slow = self._slow
        for p in params:
            slow.buffers[p].mul_(slow.momentum).add_(slow.anchors[p] - p)
            p.copy_(slow.anchors[p].sub_(slow.buffers[p]))


def scheduled(comm, rates, wrap=LocalSGD):
    module = made("hard", 0)
    optimizer = wrap(OPTIMIZERS["sgd"](module.parameters()), comm, 3, slow_momentum=0.5)
    x, y = data()
    for step, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        part = parts(comm.size, step, 12, True)[comm.rank]
        optimizer.zero_grad()
        mse(module(x[part]), y[part]).backward()
        optimizer.step()
    return [p.detach() for p in module.parameters()]


def test_a_rate_that_changes():
    """u does not depend on the rate: so after a fall it moves as much as the new rate allows."""
    rates = [0.1] * 6 + [0.01] * 6
    expected = algorithm_1(2, 3, 0.5, 1.0, rates=rates)
    assert difference(World(2).run(scheduled, rates)[0], expected) < 1e-12
    assert difference(World(2).run(scheduled, rates, Unscaled)[0], expected) > 1e-3


def test_a_rate_of_zero():
    """Warm-up may begin with it: nobody moves, nothing becomes nan."""
    mine = World(2).run(scheduled, [0.0] * 3 + [0.1] * 9)[0]
    assert all(p.isfinite().all() for p in mine)
    assert (
        difference(World(2).run(scheduled, [0.0] * 3)[0], list(made("hard", 0).parameters()))
        < 1e-15
    )


def test_after_the_switch_only():
    """Before it, each step is data parallelism."""
    early = World(2).run(train, "hard", "sgd", 4, 6, start=6, slow_momentum=0.9, dense=False)
    assert apart(early, oracle("hard", "sgd", 2, 4, 6, start=6)) < 1e-13


@pytest.mark.parametrize(
    "options", [{"slow_momentum": 1.0}, {"slow_momentum": -0.1}, {"slow_rate": 0.0}]
)
def test_values_out_of_range(options):
    with pytest.raises(ValueError, match=r"from 0 to below 1 and its rate above 0"):
        World(1).run(
            lambda comm: (
                LocalSGD(torch.optim.SGD([torch.ones(1)], 0.1), comm, 2, **options) and None
            )
        )
