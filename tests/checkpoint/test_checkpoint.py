"""Saving and loading, from and to any grid; the last k; states, and random generators."""

import errno
import math
import os
import random
import shutil
import warnings
from collections import OrderedDict

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from minidist.checkpoint import (
    Checkpoints,
    Piece,
    Refused,
    Saved,
    SaveError,
    files,
    load,
    pieces,
    random_state,
    set_random_state,
)
from minidist.checkpoint.checkpoint import by_part, read_state, state_pieces, writers
from minidist.checkpoint.reshard import Box, Place
from minidist.comm import World
from minidist.models import mlp
from minidist.parallel import FullySharded, OffloadedOptimizer, ShardedOptimizer
from minidist.train.amp import Masters
from tests.checkpoint import cases
from tests.checkpoint.test_reshard import alone
from tests.largest import largest

# ------------------------------------------------------------
# Saving and finding again: the last k, what was damaged or left unfinished, and errors on every rank.


EVERYWHERE = pytest.mark.parametrize(
    ("where", "n"), [*(("world", n) for n in (1, 2, 3, 4)), ("processes", 3), ("gloo", 2)]
)


def mine(comm, value):
    """A row of "w" for each rank, and what all have."""
    row = torch.full((1, 2), value + comm.rank)
    return [Piece("w", row, (comm.size, 2), (comm.rank, 0)), Piece("b", torch.ones(3))]


def saves(comm, folder, steps, wait=True, keep=2, **more):
    checkpoints = Checkpoints(folder, comm, keep, **more)
    for step in steps:
        checkpoints.save(
            step, mine(comm, float(step)), {"epoch": step / 10}, {"rank": comm.rank}, wait
        )
    checkpoints.wait()
    return sorted(os.listdir(folder))


def newest(comm, folder, **more):
    """What is found: (step, "w", common, own), or None."""
    checkpoints = Checkpoints(folder, comm, **more)
    found = checkpoints.latest()
    return found and (
        found.step,
        found.whole("w")[:, 0].tolist(),
        checkpoints.common(found),
        checkpoints.own(found),
    )


@EVERYWHERE
@pytest.mark.parametrize("wait", [True, False])
def test_the_last_k(tmp_path, where, n, wait):
    for names in cases.RUNS[where](n, saves, tmp_path, (10, 20, 30), wait):
        assert names == ["000002-step-20", "000003-step-30"]
    for rank, found in enumerate(cases.RUNS[where](n, newest, tmp_path)):
        assert found == (30, [30.0 + r for r in range(n)], {"epoch": 3.0}, {"rank": rank})
    for path in files.finished(tmp_path):
        assert sorted(os.listdir(path)) == [
            "manifest.json",
            *(files.file_of(r) for r in range(n)),
        ]


def test_none_yet(tmp_path):
    assert World(2).run(newest, tmp_path / "none") == [None, None]


def test_a_snapshot(tmp_path):
    """What changes after an asynchronous save began is not in it."""

    def program(comm):
        x, common = torch.zeros(1000), {"list": [1]}
        checkpoints = Checkpoints(tmp_path, comm)
        checkpoints.save(1, [Piece("x", x)], common, {"state": x}, wait=False)
        x += 1
        common["list"].append(2)
        found = checkpoints.latest()  # waits
        return (
            found.whole("x").any().item(),
            checkpoints.common(found),
            checkpoints.own(found)["state"].any().item(),
        )

    for n in (1, 3):
        assert World(n).run(program) == [(False, {"list": [1]}, False)] * n


def test_ranks_own_states_belong_to_a_grid(tmp_path):
    grid = {"dp": 2, "tp": 2}
    World(4).run(saves, tmp_path, (1,), grid=grid)
    assert [own for *_, own in World(4).run(newest, tmp_path, grid=grid)] == [
        {"rank": r} for r in range(4)
    ]
    for n, grid in (
        (4, {"dp": 4, "tp": 1}),
        (2, {"dp": 2, "tp": 1}),
        (4, None),
        (4, {"tp": 2, "dp": 2}),
    ):
        assert World(n).run(newest, tmp_path, grid=grid)[0] == (
            1,
            [1.0, 2.0, 3.0, 4.0],
            {"epoch": 0.1},
            None,
        )


def test_going_back_to_an_earlier_step(tmp_path):
    """The newest save counts, not the highest step; and nothing is written over."""
    World(2).run(saves, tmp_path, (10, 20), keep=3)
    World(2).run(saves, tmp_path, (10,), keep=3)
    assert World(2).run(newest, tmp_path)[0][0] == 10
    assert sorted(os.listdir(tmp_path)) == ["000001-step-10", "000002-step-20", "000003-step-10"]


DAMAGE = {
    "cut file": lambda path: os.truncate(path / "rank-00001.safetensors", 40),
    "changed file": lambda path: (path / "rank-00000.safetensors").open("r+b").write(b"x"),
    "no file": lambda path: (path / "rank-00001.safetensors").unlink(),
    "no manifest": lambda path: (path / "manifest.json").unlink(),
    "cut manifest": lambda path: os.truncate(path / "manifest.json", 100),
    "foreign manifest": lambda path: (path / "manifest.json").write_text(
        '{"metadata": {"format": "pt"}}'
    ),
    "pickle": lambda path: (path / "manifest.json").write_bytes(
        b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00."
    ),
}


@pytest.mark.parametrize(
    ("where", "n", "damage"),
    [
        *(("world", n, damage) for n in (1, 2, 3, 4) for damage in DAMAGE),
        ("processes", 2, "no file"),
    ],
)
def test_the_previous_one_is_used(tmp_path, damage, where, n):
    World(2).run(saves, tmp_path, (10, 20), False)
    newest_one = tmp_path / "000002-step-20"
    DAMAGE[damage](newest_one)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = cases.RUNS[where](n, newest, tmp_path)
    assert [step for step, *_ in found] == [10] * n
    if where == "world":
        told = [str(one.message) for one in seen if "passed over" in str(one.message)]
        assert len(told) == 1  # by rank 0
        assert str(newest_one) in told[0]


@pytest.mark.filterwarnings("ignore:this checkpoint is passed over")
def test_one_that_was_never_finished_is_removed_by_the_next_save(tmp_path):
    def program(comm):
        checkpoints = Checkpoints(tmp_path, comm, keep=2)
        step = checkpoints.latest().step
        checkpoints.save(step + 10, mine(comm, 0.0))

    World(2).run(saves, tmp_path, (10, 20), False)
    DAMAGE["no manifest"](tmp_path / "000002-step-20")
    World(2).run(program)
    assert sorted(os.listdir(tmp_path)) == ["000001-step-10", "000003-step-20"]


def test_where_none_was_finished_the_run_begins_anew(tmp_path):
    World(2).run(saves, tmp_path, (10,), False)
    DAMAGE["no manifest"](tmp_path / "000001-step-10")
    with pytest.warns(
        UserWarning, match="this checkpoint is passed over: .*000001-step-10 has no manifest.json"
    ):
        assert World(2).run(lambda comm: Checkpoints(tmp_path, comm).latest()) == [None, None]


@pytest.mark.parametrize("without", [0, 1])
def test_one_that_is_missing_on_a_rank(tmp_path, without):
    """Where a disk that all should see is not what one of them sees."""
    World(2).run(saves, tmp_path / "whole", (10, 20), False)
    shutil.copytree(tmp_path / "whole", tmp_path / "other")
    shutil.rmtree(tmp_path / "other" / "000002-step-20")

    def program(comm):
        return (
            Checkpoints(tmp_path / ("other" if comm.rank == without else "whole"), comm)
            .latest()
            .step
        )

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert World(2).run(program) == [10, 10]
    assert len(seen) == without and all(
        "000002-step-20 has no manifest.json" in str(one.message) for one in seen
    )


@pytest.mark.filterwarnings("ignore:this checkpoint is passed over")
def test_none_is_good(tmp_path):
    World(2).run(saves, tmp_path, (10, 20))
    DAMAGE["no file"](tmp_path / "000001-step-10")
    DAMAGE["cut manifest"](tmp_path / "000002-step-20")
    with pytest.raises(
        Refused, match=r"(?s)no checkpoint in .* is good:.*000002-step-20.*000001-step-10"
    ):
        World(2).run(newest, tmp_path)


@pytest.mark.filterwarnings("ignore:this checkpoint is passed over")
def test_a_refused_one_does_not_count(tmp_path):
    """It stays, besides as many good ones as are kept: another version, or another day, may read it."""

    def program(comm):
        checkpoints = Checkpoints(tmp_path, comm, keep=2)
        step = checkpoints.latest().step
        checkpoints.save(step + 10, mine(comm, 0.0))

    World(2).run(saves, tmp_path, (10, 20))
    DAMAGE["no file"](tmp_path / "000002-step-20")
    World(2).run(program)
    assert sorted(os.listdir(tmp_path)) == ["000001-step-10", "000002-step-20", "000003-step-20"]


def test_an_old_one_that_cannot_be_removed(tmp_path, monkeypatch):
    """The new one is saved; that is not called a failure."""
    World(2).run(saves, tmp_path, (10,))
    monkeypatch.setattr(shutil, "rmtree", lambda path: os.rmdir(path))
    with pytest.warns(UserWarning, match="could not be removed: .*not empty: .*000001-step-10"):
        World(2).run(saves, tmp_path, (20,), keep=1)
    assert [path.name for path in files.finished(tmp_path)] == ["000002-step-20"]


def test_the_unfinished_and_the_foreign(tmp_path):
    World(2).run(saves, tmp_path, (10,))
    shutil.copytree(tmp_path / "000001-step-10", tmp_path / "000002-step-20")
    (tmp_path / "000002-step-20" / "manifest.json").rename(
        tmp_path / "000002-step-20" / "manifest.json.partial"
    )
    (tmp_path / "notes").mkdir()
    assert World(3).run(newest, tmp_path)[0][0] == 10
    World(1).run(saves, tmp_path, (30,))
    assert sorted(os.listdir(tmp_path)) == ["000001-step-10", "000003-step-30", "notes"]


def full(path, chunks, real=files.write):
    if path.name == "rank-00001.safetensors":
        raise OSError(errno.ENOSPC, "no space left")
    return real(path, chunks)


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("n", [2, 3])
def test_a_full_disk_is_told_on_every_rank(tmp_path, monkeypatch, n, wait):
    """At once, or at the next save; then training goes on, and the next save works."""

    def program(comm):
        checkpoints = Checkpoints(tmp_path, comm)
        checkpoints.save(10, mine(comm, 1.0))
        if comm.rank == 0:
            monkeypatch.setattr(files, "write", full)
        said = []
        for step in (20, 30):
            try:
                checkpoints.save(step, mine(comm, 2.0), wait=wait)
            except SaveError as error:
                said.append(str(error))
        try:
            checkpoints.wait()
        except SaveError as error:
            said.append(str(error))
        step = checkpoints.latest().step
        if comm.rank == 0:
            monkeypatch.undo()
        checkpoints.save(40, mine(comm, 3.0))
        return said, step

    for said, step in World(n).run(program):
        assert step == 10
        assert all("rank 1: OSError: [Errno 28] no space left" in one for one in said)
        assert len(said) == (2 if wait else 1)  # asynchronously, the second save was not begun
    assert sorted(os.listdir(tmp_path)) == ["000001-step-10", files.begun(tmp_path)[-1].name]
    assert Saved(files.begun(tmp_path)[-1]).step == 40


def test_a_manifest_that_cannot_be_written(tmp_path, monkeypatch):
    real = files.write
    monkeypatch.setattr(
        files,
        "write",
        lambda path, chunks: real(path / "none" if path.name == files.MANIFEST else path, chunks),
    )
    with pytest.raises(SaveError, match="rank 0: FileNotFoundError"):
        World(3).run(saves, tmp_path, (10,))
    assert files.finished(tmp_path) == []


def mistakes(comm, folder, what):
    checkpoints = Checkpoints(
        folder,
        comm,
        **({"keep": 0} if what == "keep" else {}),
        **({"grid": {"dp": 2, "tp": 2}} if what == "grid" else {}),
    )
    if what == "step":
        checkpoints.save(-1)
    if what == "steps":
        checkpoints.save(10 + comm.rank)
    if what == "hole":
        checkpoints.save(1, [Piece("w", torch.ones(2), (6,), (2 * comm.rank,))])
    if what == "two":  # the weights of a model and of its teacher, say
        checkpoints.save(1, [Piece("w", torch.ones(2)), Piece("w", torch.zeros(2))])
    if what == "state":
        checkpoints.save(1, common={"optimizer": torch.optim.SGD})


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("keep", "at least 1 checkpoint is kept, not 0"),
        ("grid", "has 4 ranks, the Comm 2"),
        ("step", "a step is a whole number from 0 on, not -1"),
        ("steps", r"the ranks save the steps \[10, 11\]"),
        ("hole", r"w is \(6,\), and no rank has \[4:6\] of it"),
        ("two", "two tensors are named 'w': one of"),
        ("state", "optimizer is a type: a checkpoint holds"),
    ],
)
def test_mistakes(tmp_path, what, words):
    with pytest.raises(ValueError, match=words):
        World(2).run(mistakes, tmp_path, what)
    assert os.listdir(tmp_path) == []


def test_what_a_link_leads_to_stays(tmp_path):
    """Somebody else's checkpoint, lent to this run: the last k go on, and it is still there."""
    old, new = tmp_path / "old", tmp_path / "new"
    new.mkdir()
    World(2).run(saves, old, (5,))
    (new / "000001-step-5").symlink_to(old / "000001-step-5")
    assert World(2).run(newest, new)[0][0] == 5
    assert World(2).run(saves, new, (6, 7), keep=1)[0] == ["000003-step-7"]
    assert World(2).run(newest, old)[0][0] == 5


# ------------------------------------------------------------
# Saved on one grid, loaded on any other: equal to the serial state in every bit, whatever splits it.


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
    check(files.finished(tmp_path)[-1], *serial)
    for grid in cases.GRIDS:
        results = World(cases.ranks(grid)).run(move, tmp_path, grid, serial)
        assert results == [([], 0.1)] * cases.ranks(grid), grid
        check(files.finished(tmp_path)[-1], *serial)
    last = Saved(files.finished(tmp_path)[-1])
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
        check(files.finished(tmp_path)[-1], *serial)


def test_bytes_are_shared(tmp_path, serial):
    """Four replicas write a quarter each, about."""
    World(1).run(save_serial, tmp_path, *serial)
    World(4).run(move, tmp_path, ("plain", 1, 4, 1), serial)
    one, four = (
        sorted(p.stat().st_size for p in path.glob("rank*")) for path in files.finished(tmp_path)
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


# ------------------------------------------------------------
# Nested states as pieces.


SPLIT = Place("w", (4, 2), Box((1, 0), (3, 2)))
ENTIRE = Place("w", (3, 2), Box.of((3, 2)))


def test_what_is_split_with_its_parameter():
    x = torch.rand(3, 2)
    text, m, step = state_pieces("o/w", {"m": x, "step": torch.tensor(3.0)}, SPLIT)
    assert m.part == ("o/w/m", "F32", (4, 2), SPLIT.box)
    assert step.part == ("o/w/step", "F32", (), Box((), ()))
    assert text.part[:2] == ("o/w", "U8")


def test_what_nobody_could_put_together():
    rows = {"rows": torch.ones(3)}  # as a factored second moment has
    with pytest.raises(
        ValueError,
        match=r"o/w/rows is \(3,\) and belongs to a part \(3, 2\) of w, which is \(4, 2\)",
    ):
        state_pieces("o/w", rows, SPLIT)
    assert state_pieces("o/w", rows, ENTIRE)[1].part.whole == (3,)


@pytest.mark.parametrize(
    "text",
    [
        b'["dict"]',
        b'["dict", [1]]',
        b'["dict", [[["list", []], 1]]]',
        b"{",
        b"\xff",
        b'["tensor"]',
        b'[["a"], 1]',
        b"[" * 10**5,
        b'["os.system", "ls"]',
        b'["object", []]',
    ],
)
def test_what_was_never_written(tmp_path, text):
    found = Saved(
        alone(tmp_path, [Piece("state", torch.frombuffer(bytearray(text), dtype=torch.uint8))])
    )
    with pytest.raises(Refused, match=r"state in .* is no state that was saved: "):
        read_state(found, "state")


VALUES = [
    None,
    True,
    0,
    -(2**70),
    0.1,
    -0.0,
    5e-324,
    math.inf,
    math.nan,
    "wörd\n\ud800",
    "",
    [],
    {},
    (),
    [1, (2, [3])],
    {1: "int", "1": "str", (1, 2): None, None: 0.0},
    {"betas": (0.9, 0.95), "fused": None},
    {"b": 1, "a": 2},
    ["tensor", "x"],
    ["dict", []],
    {"list": ["list"]},
]


def test_exactly(tmp_path):
    pieces = [piece for i, value in enumerate(VALUES) for piece in state_pieces(f"{i}", value)]
    saved = Saved(alone(tmp_path, pieces))
    for i, value in enumerate(VALUES):
        found = read_state(saved, f"{i}")
        assert repr(found) == repr(value)
        assert type(found) is type(value)


def test_there_and_back(tmp_path):
    value = {
        "step": 5,
        1: torch.ones(3),
        "zero": torch.zeros((), dtype=torch.int64),
        "more": [(0.1, torch.rand(2, 2))],
        "order": OrderedDict(b=1, a=2),
    }
    found = read_state(Saved(alone(tmp_path, state_pieces("state", value))), "state")
    assert found.keys() == value.keys()
    assert torch.equal(found[1], value[1])
    assert torch.equal(found["zero"], value["zero"])
    assert torch.equal(found["more"][0][1], value["more"][0][1])
    assert (found["step"], found["more"][0][0]) == (5, 0.1)
    assert list(found["order"].items()) == [("b", 1), ("a", 2)]


def test_two_tensors_of_one_name(tmp_path):
    """The place of either is called state/1: one of them would be lost."""
    pieces = state_pieces("state", {1: torch.ones(3), "1": torch.zeros(3)})
    with pytest.raises(ValueError, match="two tensors are named 'state/1'"):
        alone(tmp_path, pieces)


@pytest.mark.parametrize(
    "wrong", [{1, 2}, b"bytes", object(), np.zeros(2), torch.float32, lambda: 0, 1j]
)
def test_others_are_refused_by_place(wrong):
    with pytest.raises(
        ValueError, match=f"s/more/1/x is a {type(wrong).__name__}: a checkpoint holds dicts"
    ):
        state_pieces("s", {"more": [0, {"x": wrong}]})


# ------------------------------------------------------------
# Who writes what.


def table(*pieces):
    return list(by_part(pieces))


def whole(name, rows, dtype=torch.float32):
    return Piece(name, torch.zeros(rows, 2, dtype=dtype))


def part(name, first, size, of=6):
    return Piece(name, torch.zeros(size, 2), (of, 2), (first, 0))


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_replicas_share_the_work(n):
    sizes = [8, 1, 5, 3, 3, 2, 7, 4]
    replica = table(*(whole(f"w{i}", size) for i, size in enumerate(sizes)))
    found = writers([replica] * n)
    assert sorted(found) == sorted(replica)
    loads = [sum(4 * one.box.numel for one, rank in found.items() if rank == r) for r in range(n)]
    assert largest(loads) <= 4 / 3 * max(8 * max(sizes), sum(loads) / n)  # Graham's bound


def test_who_alone_has_it_writes_it():
    found = writers(
        [
            table(whole("a", 1), part("m", 0, 3)),
            table(whole("a", 1), part("m", 3, 3)),
            table(whole("b", 9)),
        ]
    )
    by_key = {one.key: rank for one, rank in found.items()}
    assert by_key == {"a": 0, "m[0:3, 0:2]": 0, "m[3:6, 0:2]": 1, "b": 2}


def test_the_manifest_says_where_each_part_lies(tmp_path):
    World(2).run(saves, tmp_path, (1,))
    assert Saved(files.finished(tmp_path)[-1]).tensors["w"] == {
        "dtype": "F32",
        "shape": [2, 2],
        "pieces": [
            ["rank-00000.safetensors", [0, 0], [1, 2]],
            ["rank-00001.safetensors", [1, 0], [1, 2]],
        ],
    }


def test_empty_ones():
    found = writers(
        [table(part("m", 0, 6), whole("none", 0)), table(part("m", 6, 0), whole("none", 0))]
    )
    assert [one.key for one in found] == ["m", "none"]
    assert found[part("m", 0, 6).part] == 0


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (whole("w", 3), whole("w", 4), r"w is \(3, 2\) F32 on rank 0, and \(4, 2\) F32 on rank 1"),
        (
            whole("w", 3),
            whole("w", 3, torch.float16),
            r"w is \(3, 2\) F32 on rank 0, and \(3, 2\) F16 on rank 1",
        ),
        (part("w", 0, 3), part("w", 4, 2), r"w is \(6, 2\), and no rank has \[3:4, 0:2\] of it"),
    ],
)
def test_what_does_not_fit_together(one, other, words):
    with pytest.raises(ValueError, match=words):
        writers([table(one), table(other)])


def test_two_of_one_name():
    """One in a part and one whose name says the same; twice the same memory is one."""
    halves = table(part("w", 0, 2, 4), part("w", 2, 2, 4))
    with pytest.raises(ValueError, match="is named as another's part is"):
        writers([[*halves, *table(Piece(halves[0].key, torch.zeros(2)))]])
    x = torch.ones(2)
    assert len(by_part([Piece("w", x), Piece("w", x)])) == 1
    with pytest.raises(ValueError, match="two tensors are named 'w'"):
        by_part([Piece("w", x), Piece("w", x.clone())])


# ------------------------------------------------------------
# All generators go on where they were.


def drawn():
    return (
        torch.rand(3).tolist(),
        torch.randn(1).item(),
        random.random(),
        random.gauss(0, 1),
        np.random.normal(size=3),
    )


def test_they_go_on(tmp_path):
    drawn()
    path = alone(tmp_path, state_pieces("random", random_state()))
    first = drawn()
    drawn()
    set_random_state(read_state(Saved(path), "random"))
    again = drawn()
    assert first[:4] == again[:4]
    assert np.array_equal(first[4], again[4])


def test_each_rank_of_a_world_has_its_own():
    def program(comm):
        state = random_state()
        first = torch.rand(2)
        set_random_state(state)
        return first, torch.rand(2)

    found = World(3).run(program)
    assert all(torch.equal(a, b) for a, b in found)
    assert len({tuple(a.tolist()) for a, _ in found}) == 3


class Gpus:
    """In place of `torch.cuda`: so many GPUs, each with a generator of its own; device: the current one."""

    def __init__(self, count, device=0):
        self.states = [torch.tensor([10 * i, 0], dtype=torch.uint8) for i in range(count)]
        self.device = device

    def stand_in(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(self.states))
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: bool(self.states))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(self.states))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.device)
        monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: self.states[self.device].clone())
        monkeypatch.setattr(
            torch.cuda, "set_rng_state", lambda state: self.states[self.device].copy_(state)
        )
        return self

    def draw(self):
        """A number of the current GPU's generator."""
        self.states[self.device][1] += 1
        return self.states[self.device].tolist()


@pytest.mark.parametrize(("gpus", "device"), [(4, 3), (2, 0), (1, 0)])
def test_the_own_gpu_goes_on_where_there_are_others(monkeypatch, gpus, device):
    """Saved by a rank on GPU 1 of 2, set on a machine with another number of them, as another one there."""
    before = Gpus(2, 1).stand_in(monkeypatch)
    before.draw()
    state = random_state()
    following = before.draw()
    after = Gpus(gpus, device).stand_in(monkeypatch)
    others = [state.clone() for state in after.states]
    set_random_state(state)
    assert after.draw() == following == [10, 2]
    assert all(torch.equal(after.states[i], others[i]) for i in range(gpus) if i != device)


def test_a_gpu_run_goes_on_without_one(monkeypatch):
    Gpus(1).stand_in(monkeypatch)
    state = random_state()
    first = torch.rand(3)
    Gpus(0).stand_in(monkeypatch)
    with pytest.warns(UserWarning, match="the generator of a GPU, and this process sees none"):
        set_random_state(state)
    assert torch.equal(torch.rand(3), first)


def test_a_run_that_used_no_gpu_leaves_it_alone(monkeypatch):
    state = random_state() | {"cuda": None}
    gpus = Gpus(1).stand_in(monkeypatch)
    gpus.draw()
    set_random_state(state)
    assert gpus.draw() == [0, 2]
