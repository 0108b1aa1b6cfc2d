"""State dicts: whole ones in and out, shards, other numbers of ranks, buffers, mistakes."""

import pytest
import torch
from torch import nn

from minidist.comm import World, launch
from minidist.parallel.zero.fully import FullySharded
from tests.parallel.cases import made
from tests.parallel.zero.fully.cases import far, tower


def module_of(seed):
    torch.manual_seed(seed)
    norm = nn.BatchNorm1d(5)
    norm.running_mean.add_(seed)
    return nn.Sequential(tower(seed=seed), norm, made("hard", seed)).double()


def nested(comm, seed):
    module = module_of(seed)
    module[0].layers[1] = FullySharded(module[0].layers[1], comm)
    module[0] = FullySharded(module[0], comm)
    return FullySharded(module, comm, blocks=nn.Linear)


def out(comm, root):
    return nested(comm, comm.rank).full_state_dict(root)


@pytest.mark.parametrize("root", [None, 0, 1])
def test_the_state_dict_of_the_unsharded_module(root):
    oracle = module_of(0).state_dict()
    for runner in (World(3).run, lambda *args: launch(args[0], 3, *args[1:])):
        for rank, state in enumerate(runner(out, root)):
            if root in (None, rank):
                assert far(state, oracle) == 0
                assert all(state[name].dtype == oracle[name].dtype for name in oracle)
                module_of(1).load_state_dict(state)
            else:
                assert state == {}


def in_and_out(comm, state, root):
    model = nested(comm, 5)
    model.load_full_state_dict(state if root in (None, comm.rank) else None, root)
    return model.full_state_dict()


@pytest.mark.parametrize("root", [None, 0, 2])
def test_loading(root):
    state = {name: value + 1 for name, value in module_of(0).state_dict().items()}
    state["0.first.weight"] = state["0.first.weight"].float().double()
    for found in World(3).run(in_and_out, state, root):
        assert far(found, state) == 0


def test_a_shard_of_the_memory_at_a_time():
    def program(comm):
        model = nested(comm, 0)
        model.load_full_state_dict({k: v.half() for k, v in model.full_state_dict().items()})
        return model.full_state_dict()["0.first.weight"]

    expected = module_of(0).state_dict()["0.first.weight"].half().double()
    assert torch.equal(World(2).run(program)[0], expected)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("1.bias"), r"1 names are missing, \['1.bias'\]"),
        (lambda s: s.update(other=torch.ones(1)), r"1 are not of this model, \['other'\]"),
        (lambda s: s.update({"1.bias": torch.ones(7)}), r"1.bias is \(7,\), the model has \(5,\)"),
    ],
)
def test_mistakes(change, words):
    state = module_of(0).state_dict()
    change(state)
    with pytest.raises(ValueError, match=words):
        World(2).run(in_and_out, state, None)


def trained(model, opt, steps, x):
    for _ in range(steps):
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()


def resumed(comm):
    """Shards and the optimizer's states, saved after two steps and loaded by others: the same as four in a row."""
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(comm.rank)).double()

    def made_anew(seed):
        module = tower(seed=seed)
        module.layers[1] = FullySharded(module.layers[1], comm)
        model = FullySharded(module, comm, blocks=nn.Linear)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    straight = made_anew(0)
    again = made_anew(0)
    late = made_anew(3)
    trained(*straight, 4, x)
    trained(*again, 2, x)
    saved = [
        {name: value.clone() for name, value in again[0].state_dict().items()},
        again[1].state_dict(),
    ]
    late[0].load_state_dict(saved[0])
    late[1].load_state_dict(saved[1])
    trained(*late, 2, x)
    return list(saved[0]), straight[0].full_state_dict(), late[0].full_state_dict()


def test_shards_are_saved_and_loaded():
    for names, straight, late in World(3).run(resumed):
        assert far(late, straight) == 0
        assert names == list(tower().state_dict())
