"""AdaComm: the paper's rule, number by number, the same H on all ranks, in steps and in seconds."""

import math

import pytest
import torch

from minidist.comm import Deadlock, World, launch
from minidist.comm.cluster import Cluster, Device
from minidist.models import mlp
from minidist.train.local_sgd import AdaComm, LocalSGD
from tests.parallel.cases import replicas_equal
from tests.train.local_sgd.cases import apart, oracle, train


def periods(losses, tau_0, gamma=0.5, rates=None, power=0):
    """τ of each interval, from the losses at their beginnings."""
    found = [tau_0]
    for step in range(1, len(losses)):
        rate = (rates[0] / rates[step]) ** power if power else 1
        wanted = max(1, math.ceil((rate * losses[step] / losses[0]) ** 0.5 * tau_0))
        may_grow = power and rates[step] < rates[step - 1]
        found.append(wanted if wanted < found[-1] or may_grow else math.ceil(gamma * found[-1]))
    return found


def asked(comm, losses, rates=None, **options):
    """τ of intervals whose losses are given: each rank sees its own, above and below by turns; their mean is the loss."""
    adaptive = AdaComm(steps=1, **options)
    for step, loss in enumerate(losses):
        off = (-1) ** step * (comm.rank - (comm.size - 1) / 2) / 4
        mine = torch.tensor(loss + off, dtype=torch.float64)
        adaptive.begin(comm, step, mine, None, rates[step] if rates else 0.1)
        adaptive.averaged(comm, step + 1)
    return [interval.period for interval in adaptive.intervals]


LOSSES = [2.0, 1.0, 0.5, 0.5, 0.6, 0.01, 0.02, 0.0]


@pytest.mark.parametrize(("tau_0", "gamma"), [(20, 0.5), (7, 0.5), (100, 0.8), (1, 0.5)])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_rule(n, tau_0, gamma):
    results = World(n).run(asked, LOSSES, tau_0=tau_0, gamma=gamma)
    assert results == [periods(LOSSES, tau_0, gamma)] * n


def test_the_rule_by_hand():
    """√½·20 = 14.1; ½·20 = 10; a loss that stands still, or rises: half as long; 0.01: √0.005·20 = 1.4; then 1."""
    assert World(2).run(asked, LOSSES, tau_0=20)[0] == [20, 15, 10, 5, 3, 2, 1, 1]


RATES = [0.1, 0.1, 0.01, 0.01, 0.001]


@pytest.mark.parametrize(
    ("power", "by_hand"),
    [(0, [16, 12, 8, 4, 2]), (1, [16, 12, 26, 13, 51]), (3, [16, 12, 253, 127, 5060])],
)
def test_a_rate_that_falls(power, by_hand):
    """k = 1: √(10·¼)·16 = 25.3. k = 3, the bound's own: √(1000·¼)·16 = 253. Without it, the shorter the better."""
    losses = [1.0, 0.5, 0.25, 0.25, 0.1]
    found = World(2).run(asked, losses, RATES, tau_0=16, rate_power=power)
    assert found == [periods(losses, 16, rates=RATES, power=power)] * 2 == [by_hand] * 2


def test_it_steers_local_sgd():
    """Losses are looked at when an interval of 5 steps is over, at the next step after an average."""

    def program(comm):
        p = torch.ones(1, requires_grad=True)
        adaptive = AdaComm(4, steps=5)
        optimizer = LocalSGD(torch.optim.SGD([p], 0.0), comm, adaptive, start=2)
        averages = []
        for step in range(26):
            p.grad = torch.ones(1)
            optimizer.step(loss=1.0 if step < 12 else 0.1)
            averages += [step + 1] if optimizer.since == 0 else []
        return averages, adaptive.intervals, optimizer.H

    averages, intervals, H = World(2).run(program)[0]
    # Every step before the switch; τ = 4 until step 10, where the loss is 1 still: τ = 2; at 16 it is 0.1: τ = ⌈1.26⌉
    # is not below 2: τ = 1.
    assert averages == [1, 2, 6, 10, 12, 14, 16, *range(17, 27)]
    assert [(i.step, i.period) for i in intervals] == [(2, 4), (10, 2), (16, 1), (21, 1)]
    assert intervals[0].loss == 1.0 and intervals[2].loss == pytest.approx(0.1) and H == 1


def test_the_parameters():
    """An interval that never ends is a fixed H; losses of ranks without samples are left out."""

    def adaptive(comm, *args, **kwargs):
        return train(comm, "hard", "momentum", AdaComm(4, steps=1000), **kwargs)

    for drop_last in (True, False):
        results = World(3).run(adaptive, drop_last=drop_last)
        assert apart(results, oracle("hard", "momentum", 3, 4, drop_last=drop_last)) < 1e-13


def learning(comm, **interval):
    """A loss that falls; ranks see different ones."""
    module = mlp([6, 5, 3], dtype=torch.float64)
    adaptive = AdaComm(8, **interval)
    optimizer = LocalSGD(torch.optim.SGD(module.parameters(), 0.05), comm, adaptive)
    for _ in range(40):
        x = torch.linspace(-1, 1, 24, dtype=torch.float64).view(4, 6) * (1 + comm.rank)
        optimizer.zero_grad()

        def closure(x=x):
            loss = (module(x) - x[:, :3]).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    optimizer.average()
    return [i.period for i in adaptive.intervals], replicas_equal(comm, list(module.parameters()))


def test_in_both_worlds():
    in_world, over_processes = World(3).run(learning, steps=8), launch(learning, 3, steps=8)
    assert in_world == over_processes and len({tuple(p) for p, _ in in_world}) == 1
    assert in_world[0][1] and in_world[0][0][0] == 8 and in_world[0][0][-1] < 4


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_intervals_in_seconds(device):
    """Rank 1 is the slow one; all go by its clock. On meta tensors the loss stands still, and γ does the rest."""
    slow = Cluster.uniform(
        2, 1e-3, 0.0, Device("d", {torch.float32: 1e6}, 1 << 30, 1e18)
    ).slow_rank(1, 3.0)

    def program(comm):
        module = mlp([10, 10], device=device)
        adaptive = AdaComm(4, seconds=1.0)
        optimizer = LocalSGD(torch.optim.SGD(module.parameters(), 0.0), comm, adaptive)
        for _ in range(50):
            loss = module(torch.ones(100, 10, device=device)).sum() * 0 + 1
            loss.backward()
            optimizer.step(loss=loss)
        return [(i.step, i.period) for i in adaptive.intervals]

    first, second = World(2, cluster=slow, device=device).run(program)
    assert first == second and [period for _, period in first[:4]] == [4, 2, 1, 1]
    assert 4 <= first[1][0] <= 24 and first[1][0] % 4 == 0  # a step takes 0.12 s on the slow one


def test_over_processes_in_seconds():
    """The clocks differ; what they choose does not."""
    results = launch(learning, 3, seconds=0.002)
    assert len({tuple(p) for p, _ in results}) == 1 and all(equal for _, equal in results)


def test_an_interval_in_seconds_goes_on():
    """Of 5 seconds 3 were over when it was saved: 1 second after it is loaded it lasts on, after 2 it has ended."""

    def program(comm):
        saved, found = AdaComm(4, seconds=5.0), []
        saved.begin(comm, 0, 1.0, None, 0.1)
        for ago in (1, 2):
            loaded = AdaComm(4, seconds=5.0)
            loaded.load(saved.state(comm.now() + 3), comm.now() - ago)
            loaded.averaged(comm, 9)
            found.append(loaded.state(comm.now())["over"])
        return found

    assert World(1).run(program) == [[False, True]]


def test_ranks_that_do_not_agree_are_found():
    """If each rank went by its own loss, they would average at different steps."""

    class Alone(AdaComm):
        def _agreed(self, comm, loss, weight):
            return float(loss)

    def program(comm):
        p = torch.ones(1, requires_grad=True)
        optimizer = LocalSGD(torch.optim.SGD([p], 0.0), comm, Alone(8, steps=8))
        for step in range(20):
            p.grad = torch.ones(1)
            optimizer.step(loss=0.5 ** (step * comm.rank))

    with pytest.raises(Deadlock):
        World(2).run(program)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tau_0": 0, "steps": 1}, "tau_0 is at least 1"),
        ({"tau_0": 1, "steps": 1, "gamma": 1.0}, "gamma between"),
        ({"tau_0": 1, "seconds": 0.0}, "interval above 0"),
        ({"tau_0": 1}, "one of them: None and None"),
        ({"tau_0": 1, "steps": 2, "seconds": 2.0}, "one of them: 2 and 2.0"),
    ],
)
def test_values_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        AdaComm(**arguments)


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ([0.0], "not 0.0"),
        ([-1.0], "not -1.0"),
        ([math.nan], "not nan"),
        ([1.0, math.inf], "not inf by the first one, 1.0"),
    ],
)
def test_losses_that_cannot_be_divided(losses, message):
    with pytest.raises(ValueError, match=message):
        World(2).run(asked, losses, tau_0=4)


def test_a_loss_that_was_not_given():
    def program(comm):
        p = torch.ones(1, requires_grad=True)
        LocalSGD(torch.optim.SGD([p], 0.1), comm, AdaComm(2, steps=2)).step()

    with pytest.raises(ValueError, match=r"rank \d gave no loss, and H depends on it"):
        World(2).run(program)
