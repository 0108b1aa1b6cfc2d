"""The state dict of n ranks is the serial optimizer's; it loads there and comes back; shards go to their ranks."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

from minidist.comm import World, launch
from minidist.parallel.zero import ShardedOptimizer
from minidist.train.amp import Masters
from tests.parallel.cases import difference, made
from tests.parallel.zero.cases import OPTIMIZERS, Users, losses, serial, train


def same(ours, theirs, tolerance=1e-12):
    """Whether two states are equal, tensors within a tolerance, all else exactly, kinds too."""
    if isinstance(theirs, torch.Tensor):
        alike = isinstance(ours, torch.Tensor) and (ours.dtype, ours.shape) == (
            theirs.dtype,
            theirs.shape,
        )
        return alike and (not ours.numel() or (ours - theirs).abs().max().item() < tolerance)
    if type(ours) is not type(theirs):
        return False
    if isinstance(theirs, dict):
        return set(ours) == set(theirs) and all(same(ours[k], theirs[k], tolerance) for k in theirs)
    if isinstance(theirs, (list, tuple)):
        return len(ours) == len(theirs) and all(
            same(a, b, tolerance) for a, b in zip(ours, theirs, strict=True)
        )
    return ours == theirs if not isinstance(theirs, float) else abs(ours - theirs) < tolerance


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_whole(optimizer):
    oracle = serial("hard", optimizer)[1].state_dict()
    for n, stage in ((1, 1), (2, 2), (3, 1), (6, 2)):
        for _, _, state in World(n).run(train, "hard", optimizer, stage):
            assert same(state, oracle)
    assert not same(oracle, serial("hard", optimizer, steps=19)[1].state_dict(), 1e-6)


def test_whole_over_processes():
    oracle = serial("hard", "users")[1].state_dict()
    assert all(same(state, oracle) for _, _, state in launch(train, 3, "hard", "users", 2))


def on(comm, name, weights, state, stage, sharded=False, steps=10):
    """20 steps, with a change of optimizer after 10: from a state dict, on n ranks. None: from the start."""
    model = made("hard", 0)
    optimizer = ShardedOptimizer(model.parameters(), OPTIMIZERS[name], comm, stage)
    if weights is not None:
        with torch.no_grad():
            for p, w in zip(model.parameters(), weights, strict=True):
                p.copy_(w)
    if state is not None:
        optimizer.load_state_dict(state[comm.rank] if sharded else state)
    for step, (_, loss) in enumerate(losses(model, comm)):
        if (step >= 10) == (state is not None) and (step < 10) == (steps == 10 and state is None):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
    return [p.detach() for p in model.parameters()], optimizer.state_dict(sharded=sharded)


def continued(name, weights, state):
    """The serial optimizer from a state dict, for the last 10 of 20 steps."""
    model = made("hard", 0)
    optimizer = OPTIMIZERS[name](model.parameters())
    optimizer.load_state_dict(state)
    with torch.no_grad():
        for p, w in zip(model.parameters(), weights, strict=True):
            p.copy_(w)
    for step, (_, loss) in enumerate(losses(model, World(1).run(lambda comm: comm)[0])):
        if step >= 10:
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
    return list(model.parameters())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_there_and_back(name):
    """Half of the steps on 3 ranks, half by the serial optimizer; the other way round; and on 2 ranks."""
    oracle = serial("hard", name)[0]
    weights, state = World(3).run(on, name, None, None, 2)[0]
    assert difference(continued(name, weights, copy.deepcopy(state)), oracle) < 1e-12
    half, optimizer = serial("hard", name, steps=10)
    half = [p.detach() for p in half]
    for n, stage in ((1, 1), (2, 1), (4, 2)):
        for params, back in World(n).run(on, name, half, optimizer.state_dict(), stage):
            assert difference(params, oracle) < 1e-12
            assert same(back, serial("hard", name)[1].state_dict())


def test_sharded():
    oracle = serial("hard", "adamw")[0]
    results = World(3).run(on, "adamw", None, None, 1, True)
    states = [state for _, state in results]
    numbers = [i for state in states for i in state["state"]]
    assert sorted(numbers) == sorted(set(numbers)) == [0, 1, 2, 3, 4]
    assert all(
        len(state["state"]) < 5 and state["shard"] == {"rank": r, "size": 3}
        for r, state in enumerate(states)
    )
    for params, _ in World(3).run(on, "adamw", results[0][0], states, 2, True):
        assert difference(params, oracle) < 1e-12


def test_nothing_is_sent_for_a_shard():
    def program(comm, sharded):
        model = nn.Linear(3, 3)
        optimizer = ShardedOptimizer(
            model.parameters(), torch.optim.SGD, comm, momentum=0.9, lr=0.1
        )
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        for _ in range(5 if sharded else 0):
            optimizer.load_state_dict(optimizer.state_dict(sharded=True))

    assert World(3).run(program, True).trace == World(3).run(program, False).trace


def test_what_does_not_fit():
    def program(comm, case):
        model = nn.Linear(3, 3)
        optimizer = ShardedOptimizer(model.parameters(), Users, comm)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        state = optimizer.state_dict(sharded=True)
        if case == "another rank":
            state["shard"] = {"rank": 1, "size": 4}
        if case == "another layout":
            state["state"] = {1 - i: s for i, s in state["state"].items()}
        if case == "groups":
            state["param_groups"][0]["params"].append(2)
        if case == "kind":
            for states in optimizer.state.values():
                states["odd"] = {1, 2}
            optimizer.state_dict()
        optimizer.load_state_dict(state)

    for case, message in {
        "another rank": r"the shard of rank 1 of 4, loaded on rank \d of 2",
        "another layout": r"states of parameters \[\d\], of which rank \d owns none",
        "groups": r"groups of \[3\] parameters, the optimizer of \[2\]",
        "kind": "not set: {1, 2}",
    }.items():
        with pytest.raises(ValueError, match=message):
            World(2).run(program, case)


def test_on_meta_tensors():
    def program(comm):
        model = nn.Linear(30, 30, device="meta")
        optimizer = ShardedOptimizer(model.parameters(), torch.optim.Adam, comm)
        model(torch.empty(1, 30, device="meta")).sum().backward()
        optimizer.step()
        states = optimizer.state_dict()["state"]
        return {
            i: {k: (v.device.type, v.shape) for k, v in state.items()}
            for i, state in states.items()
        }

    for found in World(2, device="meta").run(program):
        assert (
            found[1]["exp_avg"] == ("meta", (30,))
            and found[0]["step"] == ("cpu", ())
            and len(found) == 2
        )


def with_masters(comm, steps, saved=None, shards=False):
    """Some steps of fp16 parameters by `Masters` inside: (state_dict, parameters)."""
    model = made("mlp", 0).half()
    inside = partial(Masters, optimizer_class=torch.optim.AdamW, lr=1e-3)
    optimizer = ShardedOptimizer(model.parameters(), inside, comm)
    if saved is not None:
        state, params = copy.deepcopy(saved[comm.rank if shards else 0])
        with torch.no_grad():
            for p, value in zip(model.parameters(), params, strict=True):
                p.copy_(value)
        optimizer.load_state_dict(state)
    for step in steps:
        for i, p in enumerate(model.parameters()):
            p.grad = torch.randn(
                p.shape, generator=torch.Generator().manual_seed(10 * step + i)
            ).half()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer.state_dict(sharded=shards), [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize(("n", "then", "shards"), [(2, 2, True), (4, 1, False), (1, 4, False)])
def test_what_the_optimizer_inside_adds_is_saved(n, then, shards):
    """Its masters, in a list there; without them it would go on from rounded ones."""
    whole = World(2).run(with_masters, range(8))[0]
    saved = World(n).run(with_masters, range(4), None, shards)
    for state, params in World(then).run(with_masters, range(4, 8), saved, shards):
        assert difference(params, whole[1]) == 0
        assert shards or same(state["masters"], whole[0]["masters"], 1e-30)
    for state, _ in saved:
        del state["masters"]
    assert difference(World(then).run(with_masters, range(4, 8), saved, shards)[0][1], whole[1]) > 0


class Counting(torch.optim.SGD):
    def state_dict(self):
        return super().state_dict() | {"count": 3}


def test_what_cannot_be_put_together_is_refused():
    with pytest.raises(ValueError, match="'count' in the state_dict of Counting is a int"):
        World(2).run(
            lambda comm: ShardedOptimizer(
                [nn.Parameter(torch.ones(2))], Counting, comm, lr=1.0
            ).state_dict()
        )
