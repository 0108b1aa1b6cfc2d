"""A rank whose process is stopped is named, and only it: not those that waited for it, nor those that wait for them."""

import os
import re
import signal
import time

import pytest
import torch

from minidist.collectives import all_reduce_
from minidist.comm import CommError, RankMissing, launch
from tests.size import FULL


def stops(comm, who):
    """A chain of waits: each rank needs its left neighbour, all need the one that is stopped."""
    x = all_reduce_(comm, torch.ones(8))
    if comm.rank == who:
        os.kill(os.getpid(), signal.SIGSTOP)
    for _ in range(3):
        all_reduce_(comm, x)
    return x


def check(error, who):
    text = str(error)
    assert text.startswith(f"rank {who} is missing: its process is stopped"), text
    assert error.rank == who
    assert set(re.findall(r"rank (\d)", "\n".join([text, *error.__notes__]))) == {str(who)}, text


@pytest.mark.parametrize(("transport", "n", "who"), [("shm", 2, 1), ("shm", 4, 2), ("gloo", 3, 0)])
def test_a_stopped_rank_is_named_and_only_it(transport, n, who, figure):
    times = 10 if FULL else 1
    for _ in range(times):
        with pytest.raises(RankMissing) as caught:
            launch(stops, n, who, timeout=1, transport=transport)
        check(caught.value, who)
    figure(f"{transport}, {n} ranks: it is named, and only it, {times} times of {times}")


@pytest.mark.parametrize("transport", ["shm", "gloo"])
def test_a_rank_that_goes_on_is_not_missed(transport):
    def program(comm):
        if comm.rank == 1:
            pid = os.getpid()
            if os.fork() == 0:
                time.sleep(0.5)
                os.kill(pid, signal.SIGCONT)
                os._exit(0)
            os.kill(pid, signal.SIGSTOP)
        return all_reduce_(comm, torch.ones(3)).tolist()

    assert launch(program, 2, timeout=20, transport=transport) == [[2.0] * 3] * 2


def waits_in_a_chain(comm):
    """Rank 3 sleeps; 2 waits for it, 1 for 2, 0 for 1."""
    if comm.rank == 3:
        time.sleep(60)
    comm.recv(torch.ones(1), comm.rank + 1)


@pytest.mark.parametrize("transport", ["shm", "gloo"])
def test_a_victim_of_a_timeout_does_not_blame_another(transport):
    """Over gloo a rank that has waited in vain closes its connections: its neighbours are told that it is lost."""
    with pytest.raises(CommError) as caught:
        launch(waits_in_a_chain, 4, timeout=1, transport=transport)
    assert isinstance(caught.value, RankMissing), caught.value
    assert "rank 3 is at test_stopped.py" in str(caught.value)
