"""Old versions stay as they were, share memory while they can, and go with their last use."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.func import functional_call

from minidist.parallel.pipedream.versions import Overwritten, Versions


def stepping(module, change=1.0):
    """A step in place, as an optimizer makes it."""

    @torch.no_grad()
    def step():
        for p in module.parameters():
            p.add_(change)

    return step


def values(tensors):
    return {name: t.detach().clone() for name, t in tensors.items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_version_stays_as_it_was():
    module = nn.Linear(3, 2)
    for p in module.parameters():
        nn.init.ones_(p)
    versions = Versions(module)
    versions.begin({0: 2, 1: 1, 2: 1, 3: 1})
    made = []
    for number in range(3):
        made.append(values(versions[number]))
        versions.advance(stepping(module))
    assert versions.held == [0, 1, 2, 3] and versions.newest == 3
    assert all(same(values(versions[number]), made[number]) for number in range(3))
    assert same(values(versions[3]), {name: p + 3 for name, p in made[0].items()})
    assert same(values(versions[3]), values(dict(module.named_parameters())))


def test_a_version_goes_with_its_last_use():
    module = nn.Linear(3, 2)
    versions = Versions(module)
    versions.begin({0: 2, 1: 1})
    memory = weakref.ref(versions[0]["weight"])
    versions.advance(stepping(module))
    versions.done(0)
    assert versions.held == [0, 1]
    versions.done(0)
    gc.collect()
    assert versions.held == [1] and memory() is None
    with pytest.raises(ValueError, match=r"version 0 .* only \[1\]"):
        versions[0]
    versions.done(1)
    assert versions.held == [1]  # the newest stays
    assert (versions.most, versions.most_bytes) == (2, 2 * 8 * 4)


def test_without_another_use_a_version_is_changed_in_place():
    module = nn.Linear(3, 2)
    versions = Versions(module)
    versions.begin({0: 1, 2: 1})
    where = module.weight.data_ptr()
    versions.done(0)
    versions.advance(stepping(module))
    versions.advance(stepping(module))
    assert module.weight.data_ptr() == where and versions.most == 1
    versions.advance(stepping(module))
    assert module.weight.data_ptr() != where and versions.nbytes == 2 * 8 * 4
    assert (
        versions[2]["weight"].data_ptr() == where
        and versions[3]["weight"].data_ptr() == module.weight.data_ptr()
    )


def loss_at(module, tensors, x):
    return functional_call(module, tensors, (x,)).pow(2).sum()


@pytest.mark.parametrize("kind", [Versions, Overwritten])
def test_backward_after_a_step(kind):
    """With the old weights; overwritten, with the new ones, and autograd says nothing."""
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(5, 3)
    versions = kind(module)
    versions.begin({0: 2, 1: 1})
    used = versions[0]
    loss = loss_at(module, used, x)
    leaves = {name: p.requires_grad_() for name, p in values(used).items()}
    expected = torch.autograd.grad(loss_at(module, leaves, x), leaves.values())
    versions.advance(stepping(module, 0.1))
    loss.backward()
    wrong = [not torch.equal(t.grad, g) for t, g in zip(used.values(), expected, strict=True)]
    # nothing lies behind the last
    assert wrong == ([False] * 4 if kind is Versions else [True, True, False, False])
    assert versions.nbytes == (2 if kind is Versions else 1) * 26 * 4


def test_the_parameters_themselves_in_the_graph():
    """Autograd notices a step in place."""
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    loss = module(torch.ones(1, 2)).sum()
    stepping(module)()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(
    ("kind", "reads_old"), [(lambda: nn.Linear(3, 3), True), (lambda: nn.LayerNorm(3), False)]
)
def test_moved_parameters_in_the_graph(kind, reads_old):
    """It does not notice that they move, and then it depends on the layer what backward reads; a version is right."""
    torch.manual_seed(0)
    module, x = kind(), torch.randn(4, 3, requires_grad=True)
    (expected,) = torch.autograd.grad(module(x).pow(2).sum(), x)
    loss = module(x).pow(2).sum()
    for p in module.parameters():
        p.data = p.data + 1
    assert torch.equal(torch.autograd.grad(loss, x)[0], expected) == reads_old
    versions = Versions(module)
    versions.begin({0: 1})
    loss = loss_at(module, versions[0], x)
    (expected,) = torch.autograd.grad(loss, x, retain_graph=True)
    versions.advance(stepping(module))
    assert torch.equal(torch.autograd.grad(loss, x)[0], expected)


def test_only_what_is_trained():
    module = nn.Linear(3, 2)
    module.bias.requires_grad_(False)
    versions = Versions(module)
    assert list(versions.parameters) == ["weight"] and versions.nbytes == 24
    module.bias.requires_grad_(True)
    versions.begin({})
    assert list(versions.parameters) == ["weight", "bias"]


def test_tied_weights_count_once():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    versions = Versions(module)
    versions.begin({0: 1, 1: 1})
    versions.advance(stepping(module))
    assert versions.nbytes == 2 * 8 * 4
    x = torch.ones(1, 2)
    assert not torch.equal(loss_at(module, versions[0], x), loss_at(module, versions[1], x))
    assert torch.equal(loss_at(module, versions[1], x), module(x).pow(2).sum())
