"""Which block holds which parameter: types, predicates, nesting, ties."""

import pytest
import torch
from torch import nn

from minidist.comm import World, launch
from minidist.models import MLP, Attention, TransformerLayer, gpt, next_token_loss
from minidist.parallel.zero.fully import FullySharded
from tests.parallel.zero.fully.cases import Block, far, rows, tower

TOKENS = torch.randint(0, 11, (6, 8), generator=torch.Generator().manual_seed(1))


def small(seed=0, tied=True):
    return gpt(
        layers=2, hidden=8, heads=2, vocab=11, context=8, tied=tied, seed=seed, dtype=torch.float64
    )


def names(comm, blocks):
    model = FullySharded(small(), comm, blocks=blocks)
    return {unit.name: len(unit.held) for unit in model.units}


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        (None, {"": 28}),
        (TransformerLayer, {"": 4, "layers.0": 12, "layers.1": 12}),
        (
            (Attention, MLP),
            {
                "": 12,
                "layers.0.attention": 4,
                "layers.0.mlp": 4,
                "layers.1.attention": 4,
                "layers.1.mlp": 4,
            },
        ),
        (
            lambda m: isinstance(m, TransformerLayer | MLP),
            {"": 4, "layers.0": 8, "layers.0.mlp": 4, "layers.1": 8, "layers.1.mlp": 4},
        ),
    ],
)
def test_blocks_by_type_and_predicate(blocks, expected):
    assert World(2).run(names, blocks) == [expected] * 2


def test_what_modules_share_belongs_to_the_block_around_them():
    """A pair of tied layers in one block, and a third outside."""

    def program(comm, third):
        module = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), nn.Linear(3, 3))
        module[0][1].weight = module[0][0].weight
        if third:
            module[1].weight = module[0][0].weight
        model = FullySharded(module, comm, blocks=nn.Module)
        return {
            unit.name: [[name for *_, name in h.sites] for h in unit.held] for unit in model.units
        }

    tied = ["0.0.weight", "0.1.weight"]
    assert World(1).run(program, False)[0] == {
        "0": [tied],
        "0.0": [["0.0.bias"]],
        "0.1": [["0.1.bias"]],
        "1": [["1.weight"], ["1.bias"]],
    }
    assert World(1).run(program, True)[0][""] == [[*tied, "1.weight"]]


def trained(comm, how, tied=True):
    module = small(comm.rank, tied)
    if how == "nested":
        for i, layer in enumerate(module.layers):
            layer.mlp = FullySharded(layer.mlp, comm)
            module.layers[i] = FullySharded(layer, comm, prefetch=0)
    model = FullySharded(module, comm, blocks={"deep": (TransformerLayer, MLP)}.get(how))
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(4):
        opt.zero_grad()
        tokens = rows(comm, TOKENS)
        next_token_loss(model(tokens), tokens.roll(-1, 1)).backward()
        opt.step()
    assert not any(unit.whole for unit in model.units)
    return model.full_state_dict()


def oracle(tied=True):
    module = small(0, tied)
    opt = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for _ in range(4):
        opt.zero_grad()
        next_token_loss(module(TOKENS), TOKENS.roll(-1, 1)).backward()
        opt.step()
    return module.state_dict()


@pytest.mark.parametrize(
    ("how", "tied"), [("one", True), ("deep", True), ("nested", True), ("nested", False)]
)
def test_a_gpt(how, tied):
    for state in World(3).run(trained, how, tied):
        assert far(state, oracle(tied)) < 1e-12


def test_over_processes():
    for state in launch(trained, 2, "nested"):
        assert far(state, oracle()) < 1e-12


def test_tied_across_a_nested_one_is_refused():
    def program(comm):
        module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        module[1].weight = module[0].weight
        module[0] = FullySharded(module[0], comm)
        FullySharded(module, comm)

    with pytest.raises(ValueError, match=r"1\.weight is tied to weight of a FullySharded inside"):
        World(2).run(program)


def test_another_comm_inside_is_refused():
    def program(comm):
        module = nn.Sequential(FullySharded(nn.Linear(3, 3), comm.split(0)), nn.Linear(3, 3))
        FullySharded(module, comm)

    with pytest.raises(ValueError, match="another Comm, of 2 ranks"):
        World(2).run(program)


def test_another_device_is_refused():
    with pytest.raises(ValueError, match="weight is on meta"):
        World(2).run(lambda comm: FullySharded(nn.Linear(3, 3, device="meta"), comm))


def test_a_module_without_parameters():
    def program(comm):
        return FullySharded(nn.ReLU(), comm)(torch.ones(2)), FullySharded(nn.Linear(2, 0), comm)(
            torch.ones(1, 2)
        ).shape

    for out, shape in World(3).run(program):
        assert out.tolist() == [1.0, 1.0] and shape == (1, 0)


def called_alone(comm):
    module = nn.Sequential(
        nn.Sequential(nn.Linear(3, 3), FullySharded(nn.Linear(3, 3), comm)), nn.ReLU()
    )
    module[0] = FullySharded(module[0], comm, blocks=nn.Linear)
    model = FullySharded(module, comm)
    started = []
    for i, unit in enumerate(model.units):
        unit.start = lambda unit=unit, i=i, start=unit.start: (
            unit.whole or started.append(i),
            start(),
        )
    x = torch.ones(2, 3)
    model.units[0].module.register_forward_hook(lambda *_: started.append("F0"))
    model(x).sum().backward()
    module[0].module[1](x)  # an inner one alone: no matter for the order
    started.clear()
    assert module[0].module[1]._schedule is model._schedule
    model(x)
    return started, [unit.whole for unit in model.units]


def test_an_inner_one_called_alone():
    assert World(2).run(called_alone) == [([0, 1, "F0"], [False, False])] * 2  # one ahead


def test_the_blocks_of_a_nested_one_share_its_order():
    def program(comm):
        module = tower()
        module.layers[1] = FullySharded(module.layers[1], comm)
        model = FullySharded(module, comm, blocks=Block)
        return {unit.schedule is model._schedule for unit in model.units}, len(model.units)

    assert World(1).run(program) == [({True}, 5)]
