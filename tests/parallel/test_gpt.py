"""The parts of a GPT on tensor ranks: names, values, and who has what."""

import pytest
import torch

from minidist.comm import Cluster, World
from minidist.cut import cuts
from minidist.models import gpt, sequence
from minidist.parallel import gpt as parts_of
from minidist.parallel.schedules import Shape
from tests.parallelized import MODERN, SHAPE

PARTS = 4  # embedding, 2 layers, head


def made(comm, shape, shapes, cut, given, seed=5):
    """This rank's chunks, of pipeline stage 0 in `shapes`, with their values; and the model."""
    model = gpt(**shape, seed=seed, device="cpu" if given else "meta")
    parts = parts_of.split_vocabulary(parts_of.split_layers(sequence(model), comm), comm)
    assert all(p.is_meta for p in parts.parameters())
    module = parts_of.chunks(parts, cut, shapes, 0)
    rename = lambda name: parts_of.serial_name(name, PARTS)
    parts_of.fill_(module, rename, dict(model.named_parameters()), comm, seed)
    return module, rename


def check(comm, shape, shapes, cut, given, names):
    module, rename = made(comm, shape, shapes, cut, given)
    whole, how = dict(gpt(**shape, seed=5).named_parameters()), cuts(module)
    found = {rename(name) for name, _ in module.named_parameters(remove_duplicate=False)}
    for name, p in module.named_parameters(remove_duplicate=False):
        expected = whole[rename(name)]
        expected = how[name].part(expected, comm.rank) if name in how else expected
        assert torch.equal(p, expected), name
    assert found == {name for name in whole if names(name)}
    return len(list(module.parameters())) - len(found)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    "shape", [SHAPE, MODERN, MODERN | dict(tied=False)], ids=["plain", "modern", "untied"]
)
def test_values(shape, n, given):
    every = Shape(1, 1), [(0, 4)], given, lambda name: True
    assert World(n).run(check, shape, *every) == [0] * n  # a tied parameter is one
    chunks = Shape(2, 1, 2), [(0, 1), (1, 2), (2, 3), (3, 4)], given
    mine = lambda name: name.startswith(("tokens", "positions", "layers.1."))
    assert World(n).run(check, shape, *chunks, mine) == [0] * n


def test_what_is_not_held_takes_no_memory():
    """Of two layers on two tensor ranks: half of one, and the buffer that its numbers are drawn in."""

    def program(comm):
        model = gpt(**SHAPE | dict(hidden=192), device="meta")
        parts = parts_of.split_vocabulary(parts_of.split_layers(sequence(model), comm), comm)
        module = parts_of.chunks(parts, [(0, 2), (2, 4)], Shape(2, 1), 1)
        rename = lambda name: parts_of.serial_name(name, PARTS)
        parts_of.fill_(module, rename, dict(model.named_parameters()), comm, 0)
        return module, sum(p.nbytes for p in module.parameters())

    world = World(2, cluster=Cluster.dgx_h100())
    found, layer = world.run(program), (12 * 192 + 13) * 192 * 8
    for rank, (_, nbytes) in enumerate(found):
        assert nbytes <= world.trace.memory[rank].peak < 0.5 * layer + 0.4 * layer
        assert 0.5 * layer < nbytes < 0.52 * layer + 13 * 192 * 8


def test_names():
    names = {
        "0.0.tokens.weight": "tokens.weight",
        "1.2.mlp.fc.bias": "layers.1.mlp.fc.bias",
        "0.module.1.norm_1.weight": "layers.0.norm_1.weight",
        "1.3.norm.weight": "norm.weight",
    }
    assert {name: parts_of.serial_name(name, PARTS) for name in names} == names
