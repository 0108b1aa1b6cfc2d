"""Serial layers, the same on ranks, and the comparison of all that they give back."""

import torch
from torch import nn

from minidist.comm import World, launch
from minidist.models import MLP, Attention, TransformerLayer, seeded_
from minidist.parallel.tensor import gather_from, scatter_to, tensor_parallel_
from minidist.split import cuts
from tests.largest import largest

RUNS = {
    "world": lambda n, *args: World(n).run(*args),
    "processes": lambda n, program, *args: launch(program, n, *args),
}
EVERYWHERE = [*(("world", n) for n in (1, 2, 3, 4, 5)), *(("processes", n) for n in (1, 2, 3, 4))]
HIDDEN, TOKENS = 24, 60
WIDE = dict(dtype=torch.float64)


def data(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tensor_layer(hidden, heads, comm, sequence=False, regather=False, seed=0, name="", **options):
    """A layer on the ranks of `comm`, with its initial values."""
    serial = TransformerLayer(hidden, heads, device="meta", **options)
    return tensor_parallel_(serial, comm, sequence, regather, seed, name)


def tensor_mlp(hidden, comm, sequence=False, regather=False, **options):
    return tensor_parallel_(MLP(hidden, device="meta", **options), comm, sequence, regather)


def tensor_attention(hidden, heads, comm, sequence=False, regather=False, **options):
    serial = Attention(hidden, heads, device="meta", **options)
    return tensor_parallel_(serial, comm, sequence, regather)


def batch(hidden=HIDDEN, seed=0):
    return data(2, TOKENS, hidden, seed=seed)


def found(blocks, x, comm=None, sequence=False, learn=True):
    """Output of the blocks, and {name: gradient} of the whole parameters and of x ("x")."""
    blocks, x = nn.Sequential(*blocks), x.clone().requires_grad_(learn)
    y = scatter_to(x, comm, 1) if sequence else x
    y = blocks(y)
    y = gather_from(y, comm, 1) if sequence else y
    (y * data(*y.shape, seed=1)).sum().backward()
    how = cuts(blocks)
    grads = {
        name: gather_from(p.grad, comm, *how[name]) if name in how else p.grad
        for name, p in blocks.named_parameters()
    }
    return y.detach(), grads | ({"x": x.grad} if learn else {})


def serial(make, x, count=1, seed=0, learn=True):
    return found([seeded_(make(), seed) for _ in range(count)], x, learn=learn)


def difference(mine, oracle):
    """The largest one, of outputs and of every gradient; they must have the same names and shapes."""
    (y, grads), (expected, gradients) = mine, oracle
    assert grads.keys() == gradients.keys()
    assert y.shape == expected.shape and all(
        grads[k].shape == g.shape for k, g in gradients.items()
    )
    return largest(
        [(y - expected).abs().max(), *((grads[k] - g).abs().max() for k, g in gradients.items())]
    ).item()
