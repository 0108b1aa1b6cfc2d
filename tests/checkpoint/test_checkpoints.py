"""Saving and finding again: the last k, what was damaged or left unfinished, and errors on every rank."""

import errno
import os
import shutil
import warnings

import pytest
import torch

from minidist.checkpoint import disk, manifest
from minidist.checkpoint.checkpoints import Checkpoints, SaveError
from minidist.checkpoint.manifest import Refused
from minidist.checkpoint.piece import piece
from minidist.checkpoint.saved import Saved
from minidist.comm import World
from tests.checkpoint import cases

EVERYWHERE = pytest.mark.parametrize(
    ("where", "n"), [*(("world", n) for n in (1, 2, 3, 4)), ("processes", 3), ("gloo", 2)]
)


def mine(comm, value):
    """A row of "w" for each rank, and what all have."""
    row = torch.full((1, 2), value + comm.rank)
    return [piece("w", row, (comm.size, 2), (comm.rank, 0)), piece("b", torch.ones(3))]


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
    for path in manifest.finished(tmp_path):
        assert sorted(os.listdir(path)) == [
            "manifest.json",
            *(manifest.file_of(r) for r in range(n)),
        ]


def test_none_yet(tmp_path):
    assert World(2).run(newest, tmp_path / "none") == [None, None]


def test_a_snapshot(tmp_path):
    """What changes after an asynchronous save began is not in it."""

    def program(comm):
        x, common = torch.zeros(1000), {"list": [1]}
        checkpoints = Checkpoints(tmp_path, comm)
        checkpoints.save(1, [piece("x", x)], common, {"state": x}, wait=False)
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
    assert [path.name for path in manifest.finished(tmp_path)] == ["000002-step-20"]


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


def full(path, chunks, real=disk.write):
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
            monkeypatch.setattr(disk, "write", full)
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
    assert sorted(os.listdir(tmp_path)) == ["000001-step-10", manifest.every(tmp_path)[-1].name]
    assert Saved(manifest.every(tmp_path)[-1]).step == 40


def test_a_manifest_that_cannot_be_written(tmp_path, monkeypatch):
    real = disk.write
    monkeypatch.setattr(
        disk,
        "write",
        lambda path, chunks: real(path / "none" if path.name == manifest.NAME else path, chunks),
    )
    with pytest.raises(SaveError, match="rank 0: FileNotFoundError"):
        World(3).run(saves, tmp_path, (10,))
    assert manifest.finished(tmp_path) == []


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
        checkpoints.save(1, [piece("w", torch.ones(2), (6,), (2 * comm.rank,))])
    if what == "two":  # the weights of a model and of its teacher, say
        checkpoints.save(1, [piece("w", torch.ones(2)), piece("w", torch.zeros(2))])
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
