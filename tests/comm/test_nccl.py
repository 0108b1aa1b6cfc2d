"""The library's own collectives over gloo, on every kind of Comm: whole, reordered, partial, a lane's."""

import functools
import threading

import pytest
import torch
from torch import nn

from minidist.collectives import all_reduce_
from minidist.comm import World, launch
from minidist.comm.nccl import StreamLane, tensors
from minidist.split import uneven
from tests.comm import nccl_like
from tests.comm.torchrun import over_nccl_like


def chunks(lengths, fill):
    return [torch.full((length,), float(fill(i))) for i, length in enumerate(lengths)]


def values(xs):
    return [x.tolist() for x in xs]


def collectives(comm, lengths):
    """Every collective on chunks of `lengths`, checked against what it should give; returns how many there were."""
    n = comm.size
    r = comm.rank
    native = comm.native
    lengths = lengths[:n]
    root = n - 1
    total = n * (n + 1) // 2
    x = torch.full((3,), float(r))
    native.broadcast(x, root)
    assert x.tolist() == [root] * 3
    x = torch.full((2,), r + 1.0)
    native.reduce(x, root, "sum")
    assert x.tolist() == [total if r == root else r + 1.0] * 2  # the others keep theirs
    for op, expected in [("sum", total), ("mean", total), ("min", 1), ("max", n)]:
        x = torch.full((2,), r + 1.0)
        native.all_reduce(x, op)
        assert x.tolist() == [expected] * 2
    x = torch.tensor([r + 1])
    native.all_reduce(x, "prod")
    assert x.item() == functools.reduce(int.__mul__, range(1, n + 1))

    cs = chunks(lengths, lambda i: 10 * r + i)
    native.reduce_scatter(cs, cs[r], "sum")
    assert cs[r].tolist() == [sum(10.0 * q + r for q in range(n))] * lengths[r]
    cs = chunks(lengths, lambda i: r if i == r else -1)
    native.all_gather(cs)
    assert values(cs) == values(chunks(lengths, lambda i: i))
    cs = chunks(lengths, lambda i: r if i == r else -1)
    native.gather(cs, root)
    assert values(cs) == values(chunks(lengths, lambda i: i if r == root or i == r else -1))
    cs = chunks(lengths, lambda i: i if r == root else -1)
    native.scatter(cs, root)
    assert cs[r].tolist() == [r] * lengths[r]
    # rank q sends to rank i as much as lengths[i] says
    into = chunks([lengths[r]] * n, lambda i: -1)
    native.all_to_all(into, chunks(lengths, lambda i: 10 * r + i))
    assert values(into) == values(chunks([lengths[r]] * n, lambda q: 10 * q + r))
    native.barrier(torch.zeros(1))
    return 11


def kinds(comm):
    """On the whole Comm, on one of the reverse order, on a part of it in reverse order."""
    reverse = comm.split(0, key=-comm.rank)
    part = comm.split(0 if comm.rank else None, key=-comm.rank)
    done = [
        collectives(c, lengths)
        for c in (comm, reverse, part)
        if c is not None
        for lengths in ([2, 0, 5], [4, 4, 4], [0, 0, 0])
    ]
    return sum(done)


def test_every_collective_on_every_kind_of_comm():
    assert launch(kinds, 3, transport="gloo") == [66, 99, 99]


def test_lanes_have_a_group_of_their_own():
    """Lanes and the program use the library at once, on different ranks in different orders."""

    def program(comm):
        def job(lane, k):
            for _ in range(50):
                x = torch.full((1,), float(k))
                lane.native.all_reduce(x, "sum")
                assert x.item() == 2 * k, (x, k)
            return lane.native._group is not comm.native._group

        works = [comm.stream(job, k, lane=k) for k in (1, 2)]
        job(comm, 3)
        return [w.wait() for w in works]

    assert launch(program, 2, transport="gloo") == [[True, True]] * 2


@pytest.mark.parametrize("runner", [lambda p: World(1).run(p), lambda p: launch(p, 1)])
def test_only_torch_transports_have_it(runner):
    assert runner(lambda comm: comm.native) == [None]


# ------------------------------------------------------------
# Lanes that are streams: who waits for what, on which thread, and which tensors a job is known to use.


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
        lane.submit(
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

    work = lane.submit(job, ())
    [(stream, known)] = seen
    assert known == 1 and main.clocks.get(stream, 0) == 0
    work.wait()
    assert main.clocks[stream] == 1


def test_an_exception_is_raised_by_wait_and_the_lane_goes_on():
    lane = StreamLane(FakeComm(), nccl_like.Gpu(), unwaited := {})
    failed, fine = lane.submit(lambda comm: 1 / 0, ()), lane.submit(lambda comm: 3, ())
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
