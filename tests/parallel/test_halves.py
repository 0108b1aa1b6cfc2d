"""Backward in two halves: the gradients of the whole, its FLOPs, and each half only its own."""

import itertools
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import get_gradient_edge

from minidist.models import TransformerLayer, gpt, mlp, resnet, seeded_, sequence
from minidist.parallel.halves import Halves
from minidist.study import measure
from tests.one_thread import _one_thread  # noqa: F401


def values(*shape):
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64
    )


class Twice(nn.Module):
    """One linear layer applied twice, a weight used as it is and through a function, a layer that is not used."""

    def __init__(self):
        super().__init__()
        self.layer, self.again = nn.Linear(6, 6).double(), nn.Linear(6, 6).double()
        self.conv, self.scale = nn.Parameter(values(4, 1, 3)), nn.Parameter(values(6))
        self.frozen, self.never = (
            nn.Linear(6, 6).double().requires_grad_(False),
            nn.Linear(2, 2).double(),
        )
        self.strided = nn.Parameter(values(6, 6).t())

    def forward(self, x):
        x = torch.tanh(self.layer(torch.tanh(self.layer(x)))) * self.scale + torch.sigmoid(
            self.scale
        )
        x = F.linear(self.frozen(x), self.strided @ self.again.weight.t(), self.again.bias)
        for _ in range(2):
            x = F.conv1d(x[:, None], self.conv, padding=1).mean(1)
        return x


class Ends(nn.Module):
    """Two inputs, three outputs: one of them an input, one of a parameter alone, one with both ways to a weight."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 6).double()
        self.b = nn.Linear(6, 3).double()
        self.c = nn.Parameter(values(3))

    def forward(self, x, z):
        return self.b(torch.relu(self.a(x))) + z, torch.exp(self.c) * self.c, z


def conv_net():
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.GroupNorm(2, 4),
        nn.Conv2d(4, 6, 3, stride=2, bias=False),
        nn.ReLU(),
    )
    return seeded_(net.double())


def blocks():
    """The stem of a ResNet, a block, and one with a shortcut of its own."""
    net = resnet(18, classes=3, channels=2, width=4, small=True, dtype=torch.float64)
    return nn.Sequential(net.stem, *net.blocks[1:3])


MADE = {
    "mlp": lambda: (mlp([6, 9, 7, 5], dtype=torch.float64), [values(4, 6)]),
    "conv net": lambda: (conv_net(), [values(3, 2, 11, 11)]),
    "resnet": lambda: (blocks(), [values(3, 2, 5, 5)]),
    "layer": lambda: (seeded_(TransformerLayer(16, 4, dtype=torch.float64)), [values(2, 5, 16)]),
    "explicit": lambda: (
        seeded_(TransformerLayer(16, 4, 0.1, "explicit", dtype=torch.float64)),
        [values(2, 5, 16)],
    ),
    "gpt": lambda: (
        sequence(gpt(2, 16, 4, 11, 6, dtype=torch.float64)),
        [torch.arange(8).view(2, 4)],
    ),
    "embedding": lambda: (
        sequence(gpt(2, 16, 4, 11, 6, dtype=torch.float64))[:2],
        [torch.arange(8).view(2, 4)],
    ),
    "twice": lambda: (seeded_(Twice()), [values(4, 6)]),
    "ends": lambda: (seeded_(Ends()), [values(4, 6), values(4, 3)]),
    "nothing": lambda: (nn.Identity(), [values(4, 6)]),
    "one layer": lambda: (nn.Linear(6, 2, bias=False).double(), [values(4, 6)]),
}
EXACT = {
    "mlp",
    "conv net",
    "resnet",
    "layer",
    "explicit",
    "embedding",
    "ends",
    "nothing",
    "one layer",
}
"""Where each parameter is used once, and no sum is taken in another order."""


def forward(name, wanted):
    """(module, inputs, outputs that want a gradient, their gradients)."""
    torch.manual_seed(0)
    module, inputs = MADE[name]()
    inputs = [x.clone().requires_grad_(wanted and x.is_floating_point()) for x in inputs]
    y = module(*inputs)
    outputs = [o for o in ((y,) if isinstance(y, torch.Tensor) else y) if o.requires_grad]
    return (
        module,
        inputs,
        outputs,
        [values(*o.shape) if o.dim() else torch.ones_like(o) for o in outputs],
    )


def halves_of(inputs, outputs):
    return Halves([get_gradient_edge(y) for y in outputs], [x for x in inputs if x.requires_grad])


CASES = [(name, wanted) for name in MADE for wanted in (True, False)]


@pytest.mark.parametrize(("name", "wanted"), CASES)
def test_both_halves_are_the_whole(name, wanted):
    module, inputs, outputs, grads = forward(name, wanted)
    if outputs:
        torch.autograd.backward(outputs, grads)
    other, theirs, outputs, grads = forward(name, wanted)
    halves = halves_of(theirs, outputs)
    found = halves.input(grads)
    assert all(p.grad is None for p in other.parameters()), "I leaves the weights' gradients to W"
    del outputs
    halves.weight()
    same = (
        torch.equal if name in EXACT else lambda a, b: torch.allclose(a, b, rtol=1e-12, atol=1e-12)
    )
    for x, grad in zip([x for x in inputs if x.requires_grad], found, strict=True):
        assert same(x.grad, grad)
    for (key, p), q in zip(module.named_parameters(), other.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), key
        assert p.grad is None or same(p.grad, q.grad), key


@pytest.mark.parametrize(("name", "wanted"), CASES)
def test_the_flops_of_both_are_those_of_the_whole(name, wanted):
    _, _, outputs, grads = forward(name, wanted)
    whole = measure(
        lambda: torch.autograd.backward(outputs, grads) if outputs else None, where="cpu"
    ).flops
    _, inputs, outputs, grads = forward(name, wanted)
    halves = halves_of(inputs, outputs)
    first = measure(lambda: halves.input(grads), where="cpu").flops
    second = measure(halves.weight, where="cpu").flops
    assert first + second == whole
    if name in ("mlp", "conv net", "layer", "embedding") and wanted:
        assert second > 0 < first, "both have work to do"


def test_the_halves_of_a_linear_layer():
    """I has the product with the weight, W the one with the input: 2·4·6·2 each; without an input's gradient none."""
    for wanted in (True, False):
        _, inputs, outputs, grads = forward("one layer", wanted)
        halves = halves_of(inputs, outputs)
        assert (
            measure(lambda halves=halves, grads=grads: halves.input(grads), where="cpu").flops
            == 96 * wanted
        )
        assert measure(halves.weight, where="cpu").flops == 96


def test_the_first_stage_has_both_halves_too():
    """No input wants a gradient, yet the gradient goes down to the first layer in I."""
    _, inputs, outputs, grads = forward("mlp", False)
    halves = halves_of(inputs, outputs)
    assert measure(lambda: halves.input(grads), where="cpu").flops == 2 * 4 * (5 * 7 + 7 * 9)


class Watched(nn.Module):
    """Linear layers with GELU between them; `seen`: weak references to what is saved."""

    def __init__(self, layers):
        super().__init__()
        self.layers, self.seen = nn.ModuleList(nn.Linear(6, 6) for _ in range(layers)), {}

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            self.seen[f"input of layer {i}"] = weakref.ref(x.untyped_storage())
            x = layer(x)
            self.seen[f"input of gelu {i}"] = weakref.ref(x.untyped_storage())
            x = F.gelu(x)
        return x

    def alive(self):
        return {name for name, ref in self.seen.items() if ref() is not None}


def test_what_only_the_first_half_needs_is_let_go():
    module = Watched(4)
    x = torch.randn(3, 6, requires_grad=True)
    y = module(x)
    halves = Halves([get_gradient_edge(y)], [x])
    grad = torch.ones_like(y)
    del x, y
    assert len(module.alive()) == 8
    found = halves.input([grad])
    assert module.alive() == {f"input of layer {i}" for i in range(4)}, "W needs the layers' inputs"
    halves.weight()
    del halves, found
    assert not module.alive()


def test_the_second_half_may_come_after_other_micro_batches():
    model = mlp([6, 9, 5], dtype=torch.float64)
    oracle = mlp([6, 9, 5], dtype=torch.float64)
    batches = [values(4, 6) * k for k in (1, 2, 3)]
    waiting = []
    for x in batches:
        oracle(x).sum().backward()
        y = model(x).sum()
        waiting.append(Halves([get_gradient_edge(y)], []))
        waiting[-1].input([torch.ones_like(y)])
    for halves in waiting:
        halves.weight()
    assert all(
        torch.equal(p.grad, q.grad)
        for p, q in zip(model.parameters(), oracle.parameters(), strict=True)
    )


def test_hooks_of_parameters_see_each_gradient_once():
    model, calls = mlp([6, 9, 5], dtype=torch.float64), itertools.count()
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: next(calls) and None)
    y = model(values(4, 6)).sum()
    halves = Halves([get_gradient_edge(y)], [])
    halves.input([torch.ones_like(y)])
    assert next(calls) == 0
    halves.weight()
    assert next(calls) == 1 + 4
