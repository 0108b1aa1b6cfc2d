"""Gradients in slots: what torch.optim would see, in one buffer, and nothing overwritten that somebody holds."""

import copy

import pytest
import torch
from torch import nn

from minidist.comm import World
from minidist.parallel.data import DataParallel
from minidist.study.meter import measure
from minidist.train.fuse import FlatAdamW, FlatSGD
from tests.train.fuse.test_optimizers import assert_equal, net


def loss(model, step=0):
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    return model(x.to(model[0].weight.dtype)).tanh().square().sum()


def storages(model):
    return {p.grad.untyped_storage()._cdata for p in model.parameters() if p.grad is not None}


def zero_by_optimizer(model, optimizer):
    optimizer.zero_grad()


def zero_by_model(model, optimizer):
    model.zero_grad()


@pytest.mark.parametrize("zero", [zero_by_optimizer, zero_by_model])
def test_a_backward_fills_one_buffer_and_the_step_gathers_nothing(zero):
    a, b = net(), net()
    mine, other = FlatAdamW(a.parameters(), lr=0.01), torch.optim.AdamW(b.parameters(), lr=0.01)
    used = set()
    for step in range(4):
        zero(a, mine)
        other.zero_grad()
        assert all(p.grad is None for p in a.parameters())
        for _ in range(2):  # the second is added
            loss(a, step).backward()
            loss(b, step).backward()
        assert len(storages(a)) == 1
        used |= storages(a)
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=0, atol=1e-13)
        assert measure(mine.step).calls == 1
        other.step()
        assert_equal(a, b)
    assert len(used) == 1  # the same buffer every time


@pytest.mark.parametrize("zero", [zero_by_optimizer, zero_by_model])
@pytest.mark.parametrize(
    "hold", [lambda grad: grad, lambda grad: grad.view(-1)[1:], lambda grad: grad.detach()]
)
def test_gradients_that_somebody_holds_stay_as_they_are(zero, hold):
    """All of them, the first one's or the last one's, from a backward or from a step."""
    for which in (slice(None), slice(1), slice(-1, None)):
        model = net()
        optimizer = FlatSGD(model.parameters(), lr=0.1)
        kept = []
        for step in range(3):
            loss(model, step).backward()
            optimizer.step()
            held = [hold(p.grad) for p in list(model.parameters())[which]]
            kept += zip(held, copy.deepcopy(held), strict=True)
            zero(model, optimizer)
        assert all(torch.equal(x, was) for x, was in kept)


def test_one_gradient_that_is_dropped_and_held():
    model = net()
    optimizer, first = FlatSGD(model.parameters(), lr=0.0), next(model.parameters())
    loss(model).backward()
    held, second = first.grad, model[1].weight.grad.clone()
    before, first.grad = held.clone(), None
    loss(model, 1).backward()
    optimizer.step()
    assert torch.equal(held, before) and not torch.equal(first.grad, before)
    other = net()
    loss(other).backward()
    assert torch.equal(second, other[1].weight.grad)
    loss(other, 1).backward()
    torch.testing.assert_close(model[1].weight.grad, other[1].weight.grad, rtol=0, atol=1e-13)


@pytest.mark.filterwarnings("ignore:Using backward")
def test_gradients_with_a_graph_keep_it():
    model = net()
    optimizer = FlatSGD(model.parameters(), lr=0.1)
    loss(model).backward(create_graph=True)
    assert all(p.grad.requires_grad for p in model.parameters())
    optimizer.step()
    optimizer.zero_grad()


def test_autograd_adds_to_a_gradient_that_was_given():
    model = net()
    optimizer, p = FlatSGD(model.parameters(), lr=0.1), next(model.parameters())
    p.grad = given = torch.ones_like(p)
    loss(model).backward()
    assert p.grad is given and not torch.equal(given, torch.ones_like(p))
    alone = given.clone()
    p.grad = None
    given = None
    optimizer.zero_grad()
    loss(model).backward()
    mine = p.grad
    loss(model).backward()
    assert p.grad is mine and torch.allclose(mine, 2 * (alone - 1), rtol=0, atol=1e-13)


def test_frozen_thawed_without_gradients_and_another_optimizer():
    a, b = net(), net()
    optimizers = [FlatAdamW(a.parameters(), lr=0.01), torch.optim.AdamW(b.parameters(), lr=0.01)]
    for step in range(6):
        if step == 4:
            optimizers = [
                FlatAdamW(a.parameters(), lr=0.1),
                torch.optim.AdamW(b.parameters(), lr=0.1),
            ]
        for model, optimizer in zip((a, b), optimizers, strict=True):
            model[1].requires_grad_(step > 1)
            optimizer.zero_grad()
            (loss(model, step) if step != 3 else model[0](torch.ones(5).double()).sum()).backward()
            optimizer.step()
        assert_equal(a, b)
    assert len(storages(a)) == 1


def trained(comm, flat, after):
    """With a DataParallel around, made before or after the optimizer."""
    model = net(comm.rank)
    kind = FlatAdamW if flat else torch.optim.AdamW
    optimizer = kind(model.parameters(), lr=0.01) if not after else None
    around = DataParallel(model, comm)
    optimizer = optimizer or kind(model.parameters(), lr=0.01)
    for step in range(4):
        optimizer.zero_grad()
        for k in range(2):
            around(
                torch.randn(
                    4, 5, generator=torch.Generator().manual_seed(8 * step + 2 * comm.rank + k)
                ).double()
            ).square().sum().backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("after", [False, True])
def test_beside_the_hooks_of_data_parallel(after):
    expected = World(2).run(trained, False, after)[0]
    for params in World(2).run(trained, True, after):
        for p, q in zip(params, expected, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)


def test_memory_of_a_backward_and_a_step():
    """One of each gradient, and the one that is being made; on another device two at the step."""
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(8)))
    optimizer, each = FlatSGD(model.parameters(), lr=0.1), 4 * 64 * 64
    for _ in range(2):
        optimizer.zero_grad()
        profile = measure(lambda: (model(torch.ones(1, 64)).sum().backward(), optimizer.step()))
    assert 16 * each < profile.peak < 17.5 * each
