"""Saved on one grid, loaded on any other: equal to the serial state in every bit, whatever splits it."""

import pytest
import safetensors.torch
import torch
from torch import nn

from minidist.checkpoint import manifest
from minidist.checkpoint.checkpoints import Checkpoints
from minidist.checkpoint.saved import Saved
from minidist.checkpoint.training import load, pieces
from minidist.comm import World
from minidist.models import mlp
from minidist.parallel.zero import FullySharded, OffloadedOptimizer, ShardedOptimizer
from minidist.train.amp import Masters
from tests.checkpoint import cases


@pytest.fixture(scope="module")
def serial():
    return cases.serial()


def save_serial(comm, folder, model, optimizer):
    Checkpoints(folder, comm).save(2, pieces(model, optimizer), common={"epoch": 3})


def move(comm, folder, grid, serial):
    """Load on this grid and save again. Returns the names in which this rank differs from the serial model."""
    split = cases.Split(comm, *grid)
    checkpoints = Checkpoints(folder, comm)
    found = checkpoints.latest()
    split.load(found)
    checkpoints.save(found.step + 1, split.pieces(), common=checkpoints.common(found))
    return split.agrees(*serial), split.optimizer.param_groups[0]["lr"]


def check(path, model, optimizer):
    """The whole tensors of a checkpoint are the serial ones."""
    found = Saved(path)
    found.verify()
    for name, x in model.state_dict().items():
        assert torch.equal(found.whole(f"model/{name}"), x), name
    for name, p in model.named_parameters():
        for what, x in optimizer.state[p].items():
            assert torch.equal(found.whole(f"optimizer/{name}/state/{what}"), x), (name, what)


def test_through_all_grids_and_back(tmp_path, serial):
    World(1).run(save_serial, tmp_path, *serial)
    check(manifest.finished(tmp_path)[-1], *serial)
    for grid in cases.GRIDS:
        results = World(cases.ranks(grid)).run(move, tmp_path, grid, serial)
        assert results == [([], 0.1)] * cases.ranks(grid), grid
        check(manifest.finished(tmp_path)[-1], *serial)
    last = Saved(manifest.finished(tmp_path)[-1])
    assert last.step == 2 + len(cases.GRIDS)
    last.export(tmp_path / "one.safetensors")
    found = safetensors.torch.load_file(tmp_path / "one.safetensors")
    assert found.keys() == serial[0].state_dict().keys()
    assert all(torch.equal(found[name], x) for name, x in serial[0].state_dict().items())


def test_over_processes(tmp_path, serial):
    World(1).run(save_serial, tmp_path, *serial)
    for grid in (
        ("plain", 1, 1, 1),
        ("plain", 1, 1, 2),
        ("fully", 1, 3, 1),
        ("zero 1", 2, 2, 1),
        ("plain", 1, 2, 1),
    ):
        n = cases.ranks(grid)
        assert cases.RUNS["processes"](n, move, tmp_path, grid, serial) == [([], 0.1)] * n
        check(manifest.finished(tmp_path)[-1], *serial)


def test_bytes_are_shared(tmp_path, serial):
    """Four replicas write a quarter each, about."""
    World(1).run(save_serial, tmp_path, *serial)
    World(4).run(move, tmp_path, ("plain", 1, 4, 1), serial)
    one, four = (
        sorted(p.stat().st_size for p in path.glob("rank*")) for path in manifest.finished(tmp_path)
    )
    assert sum(four) < 1.2 * one[0] + 4 * 4096  # headers
    assert four[-1] < 1.3 * sum(four) / 4


LOW = torch.float16


def optimizers(model, comm):
    """Those that keep more than states, over fp16 parameters."""
    p, adam = list(model.parameters()), torch.optim.AdamW
    return {
        "masters": lambda: Masters(p, adam, lr=0.1),
        "sharded masters": lambda: ShardedOptimizer(p, adam, comm, 2, torch.float32, lr=0.1),
        "offloaded": lambda: OffloadedOptimizer(p, adam, comm, "delayed", 1, torch.float32, lr=0.1),
    }


def steps(model, optimizer, comm, seeds):
    for seed in seeds:
        for i, p in enumerate(model.parameters()):
            p.grad = torch.randn(
                p.shape, generator=torch.Generator().manual_seed(10 * seed + i)
            ).to(LOW)
        optimizer.step()


def masters(comm, folder, name):
    """Four steps; two, saved, loaded into others, and two more; {…: values} of both."""
    found = []
    for part in (0, 1, 2):
        model = mlp([4, 6, 3]).to(LOW)
        optimizer = optimizers(model, comm)[name]()
        checkpoints = Checkpoints(folder, comm)
        if part == 2:
            load(checkpoints.latest(), model, optimizer)
        steps(model, optimizer, comm, [(1, 2, 3, 4), (1, 2), (3, 4)][part])
        if part == 1:
            checkpoints.save(2, pieces(model, optimizer))
        whole = optimizer.state_dict()
        values = (
            whole["masters"].values() if isinstance(whole["masters"], dict) else whole["masters"]
        )
        found.append([x.clone() for x in (*model.parameters(), *values)])
    return all(torch.equal(a, b) for a, b in zip(found[0], found[2], strict=True)), whole.get(
        "offload"
    )


@pytest.mark.parametrize(
    ("n", "name"),
    [(1, "masters"), (1, "sharded masters"), (3, "sharded masters"), (1, "offloaded")],
)
def test_masters_go_on_bit_for_bit(tmp_path, n, name):
    more = {"steps": 4, "pending": True} if name == "offloaded" else None
    assert World(n).run(masters, tmp_path, name) == [(True, more)] * n


def thawed(comm, folder):
    """A parameter that is frozen when the states of all are loaded."""
    model = mlp([4, 6, 3])
    model[0].weight.requires_grad_(False)
    optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, comm)
    load(Checkpoints(folder, comm).latest(), model, optimizer)
    return optimizer.state_dict()["state"]


@pytest.mark.parametrize("n", [1, 3])
def test_frozen_since(tmp_path, n):
    model = mlp([4, 6, 3])
    optimizer = torch.optim.AdamW(model.parameters())
    steps(model.to(torch.float32), optimizer, None, ())
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    World(1).run(
        lambda comm, mine: Checkpoints(tmp_path, comm).save(1, mine), pieces(model, optimizer)
    )
    oracle = optimizer.state_dict()["state"]
    for found in World(n).run(thawed, tmp_path):
        assert found.keys() == oracle.keys()
        assert all(torch.equal(found[i]["exp_avg"], oracle[i]["exp_avg"]) for i in oracle)


def wrong(comm, folder, how):
    model = nn.Linear(3, 2)
    checkpoints = Checkpoints(folder, comm)
    checkpoints.save(0, pieces(model, torch.optim.SGD(model.parameters())))
    found = checkpoints.latest()
    if how == "groups":
        load(found, model, torch.optim.SGD([{"params": [p]} for p in model.parameters()]))
    elif how == "shape":
        load(found, nn.Linear(4, 2))
    elif how == "more":
        load(found, nn.Linear(3, 2, bias=False))
    elif how == "names":
        load(found, nn.Sequential(model))
    else:
        pieces(FullySharded(model, comm), torch.optim.SGD(nn.Linear(3, 2).parameters()))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("groups", "has 1 groups of parameters, the optimizer 2"),
        ("names", "has no model/0.weight"),
        ("more", "has 1 tensors more than the model: model/bias"),
        ("shape", r"model/weight is \(2, 4\) torch.float32 here, and \(2, 3\)"),
        ("foreign", "parameter 0 of 2 of the optimizer is none of the model's"),
    ],
)
def test_what_does_not_fit(tmp_path, how, words):
    with pytest.raises(ValueError, match=words):
        World(2).run(wrong, tmp_path, how)
