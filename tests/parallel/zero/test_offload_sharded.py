"""Several hosts: with ShardedOptimizer each steps its shard alone, and together they take the serial step."""

import copy
from functools import partial

import pytest
import torch

from minidist.comm import World, launch
from minidist.parallel.zero.offload import OffloadedOptimizer
from minidist.parallel.zero.optimizer import ShardedOptimizer
from tests.largest import largest
from tests.parallel.cases import data, difference, made, mse, replicas_equal
from tests.parallel.zero.test_offload import OPTIMIZERS

STEPS = 6


def batch(k, part=slice(None)):
    x, y = data()
    return x[k::STEPS][:4][part], y[k::STEPS][:4][part]


def sharded(comm, optimizer, mode, stage, model="hard"):
    kind, options = OPTIMIZERS[optimizer]
    model = made(model, comm.rank)
    host = partial(OffloadedOptimizer, optimizer_class=kind, comm=comm, mode=mode, warmup=1)
    ours = ShardedOptimizer(model.parameters(), host, comm, stage, **options)
    for k in range(STEPS):
        ours.zero_grad()
        x, y = batch(k, slice(comm.rank, None, comm.size))
        ours.weight = len(x)
        mse(model(x), y).backward()
        ours.step()
    return list(model.parameters()), replicas_equal(comm, list(model.parameters()))


def serial(optimizer, mode):
    """The parameters that forward `STEPS` would use."""
    kind, options = OPTIMIZERS[optimizer]
    model = made("hard", 0)
    plain, then = kind(model.parameters(), **options), []
    for k in range(STEPS):
        then.append([p.detach().clone() for p in model.parameters()])
        late = mode == "delayed" and k > 1
        with torch.no_grad():
            for p, value in zip(model.parameters(), then[k - late], strict=True):
                p.copy_(value)
        plain.zero_grad()
        x, y = batch(k)
        mse(model(x), y).backward()
        with torch.no_grad():
            for p, value in zip(model.parameters(), then[k], strict=True):
                p.copy_(value)
        plain.step()
    return then[-1] if mode == "delayed" else list(model.parameters())


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("mode", ["exact", "delayed"])
@pytest.mark.parametrize("optimizer", ["adamw", "lion"])
def test_shards_on_several_hosts(optimizer, mode, stage):
    oracle = serial(optimizer, mode)
    assert (difference(oracle, serial(optimizer, "exact")) > 1e-6) == (mode == "delayed")
    for n in (1, 2, 3, 4):
        for ours, same in World(n).run(sharded, optimizer, mode, stage):
            assert same and difference(ours, oracle) <= 1e-12


def test_over_processes():
    for ours, same in launch(sharded, 3, "adamw", "delayed", 2):
        assert same and difference(ours, serial("adamw", "delayed")) <= 1e-12


def test_each_host_holds_its_shard_alone():
    def states(n):
        run = World(n, meter=True).run(sharded, "adamw", "exact", 1, "mlp")
        found = [run.trace.host[r].memory.live["optimizer states"].max() for r in range(n)]
        assert all(
            memory.live["optimizer states"].max() == 0 for memory in run.trace.memory.values()
        )
        return found

    whole = states(1)[0]
    for n in (2, 3):
        parts = states(n)
        assert sum(parts) == whole and largest(parts) < 0.75 * whole


def test_one_that_is_unfrozen_later_moves_to_the_host_too():
    def program(comm, host):
        model = made("mlp", 0)
        first = next(model.parameters()).requires_grad_(False)
        kind = (
            partial(OffloadedOptimizer, optimizer_class=torch.optim.SGD, comm=comm)
            if host
            else torch.optim.SGD
        )
        ours = ShardedOptimizer(model.parameters(), kind, comm, lr=0.1)
        for k in range(3):
            first.requires_grad_(k > 0)
            ours.zero_grad()
            x, y = batch(k)
            mse(model(x), y).backward()
            ours.step()
        return list(model.parameters())

    plain, ours = (World(2).run(program, host)[1] for host in (False, True))
    assert all(torch.equal(a, b) for a, b in zip(plain, ours, strict=True))
    assert difference(ours[:1], list(made("mlp", 0).parameters())[:1]) > 1e-6


def run(comm, mode, steps, saved=None, shards=False):
    """Some of `STEPS` steps, each rank with the whole batch: (state_dict, parameters, those after the last update)."""
    model = made("hard", 3).float()
    host = partial(
        OffloadedOptimizer,
        optimizer_class=torch.optim.AdamW,
        comm=comm,
        mode=mode,
        warmup=1,
        master_dtype=torch.float64,
    )
    # exact: 2g, 4g, …
    ours = ShardedOptimizer(model.parameters(), host, comm, algorithm="halving_doubling", lr=0.01)
    if saved is not None:
        state, params = copy.deepcopy(saved[comm.rank] if shards else saved[0])[:2]
        with torch.no_grad():
            for p, value in zip(model.parameters(), params, strict=True):
                p.copy_(value)
        ours.load_state_dict(state)
    for k in steps:
        ours.zero_grad()
        x, y = batch(k)
        mse(model(x.float()), y.float()).backward()
        ours.step()
    state, params = copy.deepcopy((ours.state_dict(sharded=shards), list(model.parameters())))
    ours.finish()
    assert replicas_equal(comm, list(model.parameters()))
    return state, params, list(model.parameters())


def equal(a, b):
    return all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


@pytest.mark.parametrize("mode", ["exact", "delayed"])
@pytest.mark.parametrize("first", [1, 3])
@pytest.mark.parametrize(("n", "then", "shards"), [(2, 2, True), (1, 4, False), (16, 2, False)])
def test_a_run_goes_on_bit_for_bit(n, then, shards, first, mode):
    """The whole state on another number of ranks, too; 16 are more than there are parameters."""
    whole = World(2).run(run, mode, range(STEPS))[0]
    saved = World(n).run(run, mode, range(first), None, shards)
    for state, params, last in World(then).run(run, mode, range(first, STEPS), saved, shards):
        assert equal(params, whole[1]) and equal(last, whole[2])
        assert (
            state["offload"]
            == {"steps": STEPS, "pending": mode == "delayed"}
            == whole[0]["offload"]
        )
        assert shards or equal(state["masters"].values(), whole[0]["masters"].values())
    assert equal(whole[1], whole[2]) == (mode == "exact")


@pytest.mark.parametrize("lost", ["masters", "offload"])
def test_what_is_not_saved_is_missed(lost):
    whole = World(2).run(run, "delayed", range(STEPS))[0]
    saved = World(2).run(run, "delayed", range(3))
    del saved[0][0][lost]
    assert not equal(World(2).run(run, "delayed", range(3, STEPS), saved)[0][2], whole[2])


def test_masters_of_masters_are_refused():
    def program(comm):
        host = partial(OffloadedOptimizer, optimizer_class=torch.optim.SGD, comm=comm)
        ShardedOptimizer(made("mlp", 0).parameters(), host, comm, master_dtype=torch.float32)

    with pytest.raises(
        ValueError, match=r"masters of masters: the OffloadedOptimizer .* torch\.float32"
    ):
        World(2).run(program)
