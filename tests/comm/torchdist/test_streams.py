"""Lanes that are streams: who waits for what, on which thread, and which tensors a job is known to use."""

import functools
import threading

import pytest
import torch
from torch import nn

from minidist.collectives import all_reduce_
from minidist.comm.torchdist.streams import StreamLane, tensors
from minidist.split import uneven
from tests.comm import nccl_like
from tests.comm.torchrun import over_nccl_like


class FakeComm:
    """What a lane asks of its Comm."""

    def __init__(self):
        self.started = []

    def start(self):
        self.started.append(threading.current_thread().name)


def test_jobs_run_on_the_thread_that_asks_in_the_lanes_stream():
    gpu = nccl_like.Gpu()
    comm = FakeComm()
    unwaited = {}
    lane, main = StreamLane(comm, gpu, unwaited), gpu.current_stream()
    seen = []
    works = [
        lane.put(
            lambda c, i: seen.append((c is comm, i, gpu.current_stream() is not main)) or 10 * i,
            (i,),
        )
        for i in range(3)
    ]
    assert seen == [(True, i, True) for i in range(3)]
    assert comm.started == ["MainThread"] * 3
    assert gpu.current_stream() is main and len(unwaited) == 3
    assert [work.wait() for work in works] == [0, 10, 20] and not unwaited


def test_streams_wait_for_each_other():
    """The lane's for all that the caller's had to do, and the caller's for the lane's when it is told to."""
    gpu = nccl_like.Gpu()
    lane, main = StreamLane(FakeComm(), gpu, {}), gpu.current_stream()
    main.tick()
    seen = []

    def job(comm):
        stream = gpu.current_stream()
        seen.append((stream, stream.clocks.get(main)))
        stream.tick()

    work = lane.put(job, ())
    [(stream, known)] = seen
    assert known == 1 and main.clocks.get(stream, 0) == 0
    work.wait()
    assert main.clocks[stream] == 1


def test_an_exception_is_raised_by_wait_and_the_lane_goes_on():
    lane = StreamLane(FakeComm(), nccl_like.Gpu(), unwaited := {})
    failed, fine = lane.put(lambda comm: 1 / 0, ()), lane.put(lambda comm: 3, ())
    assert fine.wait() == 3 and list(unwaited) == [failed]
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            failed.wait()


class Holder:
    """Stands for an object of this package."""

    __module__ = "minidist.tests"
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


def test_which_tensors_a_job_uses():
    a, b, c, d, e, f = xs = [torch.zeros(1) for _ in range(6)]
    held, hidden = Holder([c]), nn.Linear(1, 1)

    def job():
        return d

    found = list(
        tensors(
            [
                a,
                {"b": (b,)},
                held,
                job,
                functools.partial(print, e),
                hidden,
                uneven,
                Holder(held),
                {f},
            ]
        )
    )
    assert {id(x) for x in found} == {id(x) for x in xs}
    assert len(found) == 6


def test_a_result_of_a_lane_is_used_after_its_wait():
    def program(comm):
        x = torch.ones(3, device=comm.device)
        works = [comm.stream(all_reduce_, x + i, lane=i) for i in range(2)]
        return [(work.wait() * 1).tolist() for work in reversed(works)]

    assert over_nccl_like(program, 2) == [[[4.0] * 3, [2.0] * 3]] * 2


def test_what_a_job_posts_starts_on_its_stream():
    """And may be waited for by the program."""

    def program(comm):
        peer, y = 1 - comm.rank, torch.zeros(2, device=comm.device)
        x = torch.full((2,), float(comm.rank), device=comm.device)

        def job(lane):
            return [lane.isend(x, peer), lane.irecv(y, peer)]

        for work in comm.stream(job).wait():
            work.wait()
        return y.tolist()

    assert over_nccl_like(program, 2) == [[1.0, 1.0], [0.0, 0.0]]
