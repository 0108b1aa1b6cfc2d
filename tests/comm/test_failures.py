"""What the user sees of five failures, and how soon, in a World and between processes."""

import os
import signal
import threading
import time

import pytest
import torch

from minidist.comm import Deadlock, PeerLost, RankMissing, World, launch

pytestmark = (
    pytest.mark.full
)  # a part at a time stands in test_clock, test_wires, test_world, test_launch


def missing(comm, seconds):
    if comm.rank == 2:
        return time.sleep(seconds)
    comm.sendrecv(torch.ones(3), (comm.rank + 1) % 4, torch.empty(3), (comm.rank - 1) % 4)


def mismatched(comm):
    if comm.rank == 0:
        comm.send(torch.ones(3), 1)
    if comm.rank == 1:
        comm.recv(torch.ones(2), 0)


def raising(comm):
    if comm.rank == 2:
        raise KeyError("no such layer")
    comm.recv(torch.empty(1), 2)


def killed(comm):
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.recv(torch.empty(1), 1)


def endless(comm):
    while True:
        time.sleep(0.01)


def in_a_world(program, *args):
    World(4).run(program, *args)


def between_processes(program, *args):
    launch(program, 4, *args, timeout=2)


@pytest.mark.parametrize(
    ("run", "program", "args", "error", "words", "seconds"),
    [
        (in_a_world, missing, (0,), Deadlock, "rank 2", 1),
        (between_processes, missing, (60,), RankMissing, "rank 2", 5),
        (in_a_world, mismatched, (), ValueError, "3", 1),
        (between_processes, mismatched, (), ValueError, "3", 1),
        (in_a_world, raising, (), KeyError, "no such layer", 1),
        (between_processes, raising, (), KeyError, "no such layer", 1),
        (between_processes, killed, (), PeerLost, "rank 1", 1),  # in a World it would end us all
        (in_a_world, endless, (), KeyboardInterrupt, "", 1 + 3),
        (between_processes, endless, (), KeyboardInterrupt, "", 1 + 3),
    ],
)
def test_a_failure(run, program, args, error, words, seconds, figure):
    launch(lambda comm: comm.rank, 4)  # the server is there
    if program is endless:
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(error) as caught:
        run(program, *args)
    took = time.monotonic() - start
    said = [str(caught.value), *getattr(caught.value, "__notes__", [])]
    figure(
        f"{program.__name__} {run.__name__}: after {took:.2f} s {error.__name__}: "
        + "\n".join(said)
    )
    assert type(caught.value) is error or error is ValueError
    assert words in "".join(said) and took <= seconds
    assert World(2).run(lambda comm: comm.rank) == launch(lambda comm: comm.rank, 2) == [0, 1]
