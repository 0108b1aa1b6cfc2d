"""Running averages are counted once; and where the modules behind a function are found."""

import functools

import pytest
import torch
from torch import nn

from minidist.train.remat import checkpoint, checkpoint_reentrant
from minidist.train.remat.aside import Buffers, aside, modules

NAMED = nn.BatchNorm1d(2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4, dtype=torch.float64)
        self.register_buffer("table", torch.ones(3))

    def forward(self, x):
        return self.norm(x).exp() * self.table.sum()

    def other(self, x, power):
        return self.norm(x) ** power


@pytest.mark.parametrize("form", [checkpoint, checkpoint_reentrant])
@pytest.mark.parametrize("way", ["module", "method", "closure", "partial", "list"])
def test_a_batch_counts_once(form, way):
    net, expected = Net(), Net()
    x = torch.arange(12.0, dtype=torch.float64).reshape(3, 4).square().requires_grad_()
    parts = [net]
    fns = {
        "module": net,
        "method": net.forward,
        "closure": lambda x: net(x),
        "partial": functools.partial(net.other),
        "list": lambda x: parts[0](x),
    }
    args = (2,) if way == "partial" else ()
    form(fns[way], x, *args).sum().backward()
    (expected.other if args else expected)(x, *args).sum().backward()
    for (name, mine), theirs in zip(net.named_buffers(), expected.buffers(), strict=True):
        assert torch.equal(mine, theirs), name
    assert net.norm.num_batches_tracked == 1


def test_only_what_was_changed_is_put_aside():
    net = Net()
    buffers = Buffers(net)
    net(torch.randn(3, 4, dtype=torch.float64))
    assert {id(b) for b in buffers.changed()} == {id(b) for b in net.norm.buffers()}
    buffers = Buffers(net.eval())
    net(torch.randn(3, 4, dtype=torch.float64))
    assert buffers.changed() == []


def test_aside():
    a, b = torch.ones(3), torch.ones(3)

    def change():
        with aside([a]):
            a.add_(1)
            b.add_(1)
            assert a.tolist() == [2, 2, 2]
            raise KeyError

    with pytest.raises(KeyError):
        change()
    assert a.tolist() == [1, 1, 1] and b.tolist() == [2, 2, 2]


def test_modules():
    a, b = nn.Linear(1, 1), nn.Linear(1, 1)

    def function(x):
        return NAMED(a(x)) + later

    assert set(modules(function)) == {a, NAMED}
    later = b
    assert set(modules(function)) == {a, b, NAMED}
    assert modules(functools.partial(function.__call__, a)) == [a]
    assert modules([a, (b, 3)]) == [a, b] and modules(torch.add) == modules(3) == []
