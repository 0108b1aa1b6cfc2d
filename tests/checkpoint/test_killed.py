"""SIGKILL at every step of a save, on either rank: the last good checkpoint is found, and the next save works."""

import os
import signal

import pytest

from minidist.checkpoint import files
from minidist.comm import World, launch
from minidist.comm.base import PeerLost
from tests.checkpoint.test_checkpoint import newest, saves

CALLS = ("mkdir", "open", "fsync", "replace", "unlink", "rmdir")


class Written:
    """An open file, whose writes are counted, too."""

    def __init__(self, file, write):
        self.file = file
        self.write = write

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.file.close()


def arm(at, log=None):
    """From now on this process counts its calls to the disk, and dies at call `at`, of a write after half of it."""
    count = 0

    def counted(name, real, half=None):
        def call(*args, **kwargs):
            nonlocal count
            if log is not None:
                log.append(name)
            elif count == at:
                if half:
                    half(*args)
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
            return real(*args, **kwargs)

        return call

    def opened(path, mode):
        if mode != "wb":
            return open(path, mode)
        file = counted("open", open)(path, mode)

        def half(chunk):
            file.write(chunk[: len(chunk) // 2])
            file.flush()

        return Written(file, counted("write", file.write, half))

    for name in CALLS:
        setattr(os, name, counted(name, getattr(os, name)))
    files.open = opened


def dies(comm, folder, rank, at, wait):
    """A good save, and one in which `rank` dies at its call `at`."""
    if comm.rank == rank:
        arm(at)
    saves(comm, folder, (30,), wait)


def watched(comm, folder):
    """The calls of each rank."""
    log = []
    arm(None, log)
    saves(comm, folder, (30,))
    return log


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calls")
    World(2).run(saves, folder, (10, 20))
    return launch(watched, 2, folder)


def test_the_calls_are_those_that_matter(calls):
    first = ["mkdir", "open", "write"]
    assert all(log[: len(first)] == first for log in calls)
    assert [log.count("replace") for log in calls] == [2, 1]  # own file, and the manifest
    assert "unlink" in calls[0]
    assert "unlink" not in calls[1]


@pytest.mark.parametrize("wait", [True, False])
def test_at_every_step(tmp_path, calls, wait):
    seen = set()
    for rank, at in points(calls)[wait::2]:  # each once, beside the program or in it
        folder = tmp_path / f"{rank}-{at}"
        World(2).run(saves, folder, (10, 20))
        with pytest.raises(PeerLost, match=rf"rank {rank}"):
            launch(dies, 2, folder, rank, at, wait)
        [[step, w, common, _], _] = World(2).run(newest, folder)
        assert (w, common) == ([step, step + 1], {"epoch": step / 10})
        committed = rank == 0 and at > last_of_manifest(calls[0])
        assert step == (30 if committed else 20), (rank, at)
        seen.add(step)
        World(2).run(saves, folder, (40,))
        assert [path.name[7:] for path in files.begun(folder)] == [f"step-{step}", "step-40"]
    assert seen == {20, 30}


def points(calls):
    """(rank, call) of every call, but of writes that follow each other in one file the first two."""
    return [
        (rank, at)
        for rank, log in enumerate(calls)
        for at in range(len(log))
        if log[max(0, at - 2) : at + 1] != ["write"] * 3
    ]


def last_of_manifest(log):
    """The place of the call that gives the manifest its name."""
    return len(log) - 1 - log[::-1].index("replace")
