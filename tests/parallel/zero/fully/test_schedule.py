"""The order of gathers and reductions, and that they run beside the computation."""

import pytest
import torch
from torch import nn

from minidist.comm import World
from minidist.comm.cluster import Cluster, Device
from minidist.parallel.zero.fully import FullySharded
from tests.parallel.zero.fully.cases import Block, large, rows, tower

X = torch.randn(12, 5, generator=torch.Generator().manual_seed(2)).double()


def logged(comm, prefetch, steps, skip=()):
    """What was started, in order, in the last step: `g0` gathers block 0, `r0` reduces it, `F0` and `B0` compute."""
    module = tower().layers
    module = nn.Sequential(*module)
    model = FullySharded(module, comm, blocks=Block, prefetch=prefetch)
    log = []
    for i, unit in enumerate(model.units):
        unit.start = lambda unit=unit, i=i, start=unit.start: (
            log.append(f"g{i}") if not unit.whole else 0,
            start(),
        )
        module[i].b.register_forward_hook(lambda *_, i=i: log.append(f"F{i}"))
        module[i].b.register_full_backward_hook(lambda *_, i=i: log.append(f"B{i}"))
    reduce = model._schedule.reduce
    position = {id(unit): i for i, unit in enumerate(model.units)}
    model._schedule.reduce = lambda unit: (
        log.append(f"r{position[id(unit)]}") if unit.dirty else 0,
        reduce(unit),
    )
    for step in range(steps):
        log.clear()
        if step == steps - 1:
            for i in skip:
                module[i].forward = lambda x: x
        model(rows(comm, X)).sum().backward()
    return " ".join(log)


def test_naive_order():
    order = "g0 F0 g1 F1 g2 F2 g3 F3 g3 B3 r3 g2 B2 r2 g1 B1 r1 g0 B0 r0"
    for steps in (1, 2):
        assert World(2).run(logged, 0, steps) == [order] * 2


def test_one_ahead():
    """In the first forward the order is not known; backward knows it from then on."""
    back = "g3 g2 B3 r3 g1 B2 r2 g0 B1 r1 B0 r0"
    assert World(2).run(logged, 1, 1) == ["g0 F0 g1 F1 g2 F2 g3 F3 " + back] * 2
    assert World(2).run(logged, 1, 2) == ["g0 g1 F0 g2 F1 g3 F2 F3 " + back] * 2


def test_two_ahead():
    order = "g0 g1 g2 F0 g3 F1 F2 F3 g3 g2 g1 B3 r3 g0 B2 r2 B1 r1 B0 r0"
    assert World(2).run(logged, 2, 2) == [order] * 2


def side_by_side(comm):
    """Blocks of which none has an input with a gradient: what is started in backward."""

    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = tower(seed=comm.rank).layers

        def forward(self, x):
            return sum(layer(x) for layer in self.layers)

    model = FullySharded(Sum(), comm, blocks=Block, prefetch=0)
    loss, log = model(rows(comm, X)).sum(), []
    reduce = model._schedule.reduce
    model._schedule.reduce = lambda unit: (
        log.append(f"r{unit.name[-1]}") if unit.dirty else 0,
        reduce(unit),
    )
    for unit in model.units:
        unit.start = lambda unit=unit, start=unit.start: (
            unit.whole or log.append(f"g{unit.name[-1]}"),
            start(),
        )
    loss.backward()
    return " ".join(log)


def test_a_block_without_a_gradient_for_its_input_is_done_when_its_parameters_are():
    assert World(2).run(side_by_side) == ["g3 r3 g2 r2 g1 r1 g0 r0"] * 2


def other_order(comm, skip):
    """A forward that leaves a block out, after one that did not."""

    class Some(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.out = tower(seed=comm.rank).layers, ()

        def forward(self, x):
            for i, layer in enumerate(self.layers):
                x = x if i in self.out else layer(x)
            return x

    module = Some()
    model = FullySharded(module, comm, blocks=Block)
    grads = []
    for module.out in ((), skip, ()):
        model.zero_grad()
        model(rows(comm, X)).square().mean().backward()
        assert not any(unit.whole for unit in model.units)
        grads.append([p.grad for p in model.parameters()])
    return grads


@pytest.mark.parametrize("skip", [(0,), (1,), (2, 3), (0, 1, 2)])
def test_a_wrong_guess_costs_no_more_than_a_gather(skip):
    for first, second, third in World(3).run(other_order, skip):
        assert all((a == b).all() for a, b in zip(first, third, strict=True))
        assert [g is None for g in second] == [i // 4 in skip for i in range(16)]


def step_time(comm, prefetch):
    model = FullySharded(large("meta"), comm, prefetch=prefetch, blocks=nn.Linear)
    x = torch.empty(512, 1000, device="meta")
    for _ in range(2):
        start = comm.now()
        model(x).sum().backward()
    return comm.now() - start


def test_prefetch_hides_what_computing_takes():
    """A block's gather takes as long as its forward; with one ahead nearly all of it is hidden."""
    flops = 2 * 512 * 1000 * 1000
    rank = Device("a rank", {torch.float32: 1e12}, 1 << 40, 1e18)
    cluster = Cluster.uniform(2, 0.0, flops / 1e12 / (4 * 1001000 / 2), rank)
    block = flops / 1e12
    naive, ahead, two = (
        max(World(2, cluster=cluster, device="meta").run(step_time, k)) for k in (0, 1, 2)
    )
    # computing, and 3 messages a block
    assert naive == pytest.approx((10 + 19 + 30) * block, rel=0.02)
    # gathers and reductions fit under backward
    assert ahead == pytest.approx((1 + 10 + 1 + 19 + 1) * block, rel=0.1)
    assert ahead >= 30 * block > 0 and two <= ahead * 1.01


def test_prefetch_below_zero_is_refused():
    with pytest.raises(ValueError, match="-1 blocks"):
        World(1).run(lambda comm: FullySharded(nn.Linear(1, 1), comm, prefetch=-1))
