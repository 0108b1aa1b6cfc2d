"""Exceptions and deadlocks in a learner's words. The texts are those of real Worlds."""

import pytest
import torch

from minicheck.examinee import explain, own_line
from minidist.collectives import all_reduce_
from minidist.comm import Deadlock, World


def deadlock(program):
    with pytest.raises(Deadlock) as caught:
        World(3).run(program)
    return explain("f", "n = 3", {"kind": "deadlock", "text": str(caught.value)})


def test_everyone_sends():
    assert "Start both together" in deadlock(
        lambda comm: comm.send(torch.ones(1), (comm.rank + 1) % 3)
    )


def test_everyone_receives():
    assert "Who begins?" in deadlock(lambda comm: comm.recv(torch.ones(1), (comm.rank + 1) % 3))


def test_a_step_too_many():
    assert "a step too many" in deadlock(
        lambda comm: comm.rank == 0 and comm.send(torch.ones(1), 1)
    )


def test_a_circle():
    def program(comm):
        if comm.rank == 0:
            comm.recv(torch.ones(1), 1)
        else:
            comm.send(torch.ones(1), 3 - comm.rank)

    assert "in a circle" in deadlock(program)


def test_a_lane_that_one_rank_does_not_start():
    def program(comm):
        if comm.rank:
            comm.stream(all_reduce_, torch.ones(1)).wait()

    assert "has never started" in deadlock(program)


def test_an_exception_names_rank_and_line():
    error = {
        "kind": "error",
        "type": "KeyError",
        "text": "7",
        "rank": 2,
        "place": "\n  in g, a.py:3",
    }
    assert explain("f", "n = 3", error) == "f: n = 3: rank 2 raised KeyError: 7\n  in g, a.py:3"


def test_own_line_skips_the_package_and_torch():
    frames = [(torch.__file__, 1, "t"), (World.__module__, 1, "w"), (__file__, 7, "mine")]
    assert own_line([frames[0], frames[2]]) == frames[2]
    assert own_line(frames[:1]) is None
