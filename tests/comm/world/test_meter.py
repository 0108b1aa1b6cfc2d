"""The meter of a World's run: each rank's own time and memory, whoever runs when."""

import gc
import itertools

import pytest
import torch
from torch import nn

from minidist.collectives import all_reduce_, broadcast_
from minidist.comm import Span, World
from minidist.comm.cluster import Cluster, Device
from minidist.study.meter import measure
from tests.comm.nets import ALPHA, BETA, TOY, seconds_of, world
from tests.largest import smallest


def product(comm):
    return torch.ones(100, 100) @ torch.ones(100, 100)


def train(comm, net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.ones(32, 64)).sum().backward()
    optimizer.step()
    return comm.now()


def test_the_meter_is_on_where_there_is_a_device_unless_told():
    assert World(2).run(seconds_of, product) == [0.0, 0.0]
    uniform = Cluster.uniform(2, ALPHA, BETA, device=TOY)
    off = World(2, cluster=uniform, meter=False)
    assert (
        off.run(seconds_of, product) == [0.0, 0.0]
        and off.trace.memory == {}
        and not off.trace.spans
    )
    on = World(2, meter=True)  # no device: no time, but memory
    assert on.run(seconds_of, product) == [0.0, 0.0] and on.trace.memory[1].peak == 3 * 40_000


def test_spans():
    trace = world(2).run(seconds_of, product).trace
    once = 4e4 / 1e11
    assert [s for s in trace.spans if s.rank == 1] == [
        Span(1, "main", "compute", 0.0, once, "ones"),
        Span(1, "main", "compute", once, 2 * once, "ones"),
        Span(1, "main", "compute", 2 * once, 2 * once + 2e6 / 1e12, "mm"),
    ]


def a_step(comm):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(torch.ones(4, 8)).sum()
    job = comm.stream(lambda lane: torch.ones(8) + 1)
    loss.backward()
    job.wait()
    optimizer.step()


def test_spans_say_what_the_rank_was_at():
    trace = world(1).run(a_step).trace
    kinds = [kind for kind, _ in itertools.groupby(s.kind for s in trace.spans if s.lane == "main")]
    assert kinds == ["compute", "backward", "update"]
    assert {s.kind for s in trace.spans if s.lane != "main"} == {"compute"}


def test_a_slow_rank_is_slow_in_computing_too():
    cluster = Cluster.uniform(3, ALPHA, BETA, device=TOY).slow_rank(1, 2.5)
    fast, slow, same = World(3, cluster=cluster).run(seconds_of, product)
    assert fast == same and slow == pytest.approx(2.5 * fast, rel=1e-12)


def test_jitter_is_the_same_in_every_run():
    runs = [
        World(2, cluster=Cluster.uniform(2, ALPHA, BETA, device=TOY).jitter(0.2, seed)).run(
            train, nn.Linear(64, 8)
        )
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1] and runs[0].trace == runs[1].trace and runs[0] != runs[2]
    assert runs[0][0] != runs[0][1]  # each rank has its own


def test_a_run_is_the_same_every_time():
    runs = [world(4, on_failure="end").run(train, nn.Linear(64, 8)) for _ in range(2)]
    assert runs[0].trace == runs[1].trace and runs[0].trace.memory[3] == runs[1].trace.memory[3]


def test_each_rank_has_its_own_memory():
    def program(comm, given, untouched):
        mine = torch.empty(1000 * (comm.rank + 1))
        broadcast_(comm, given)
        return mine.sum()

    memory = world(3).run(program, torch.ones(500), untouched=[nn.Linear(10, 10)]).trace.memory
    peaks = [4000 * (r + 1) + 2000 + 440 for r in range(3)]
    assert all(peak <= memory[r].peak <= peak + 2000 for r, peak in enumerate(peaks))
    assert [sum(memory[r].at(0.0).values()) for r in range(3)] == peaks
    assert all(memory[r].at(0.0)["parameters"] == 440 for r in range(3))


SECOND = Device("one operator a second", {torch.float32: 1e30}, 10**9, bandwidth=1e30, launch=1.0)


def test_what_dies_while_another_rank_runs_dies_at_its_own_time():
    def program(comm):
        x = torch.empty(1000)
        if comm.rank == 0:  # x dies when rank 1 has received it, at 1 s; rank 2 is at 9 s then
            work, x = comm.isend(x, 1), None
            for _ in range(20):
                torch.ones(1)
            work.wait()
        for _ in range(comm.rank**3 + (comm.rank == 2)):
            torch.ones(1)
        if comm.rank == 1:
            comm.recv(x, 0)
            comm.send(x, 2)
        elif comm.rank == 2:
            comm.recv(x, 1)

    line = world(3, SECOND).run(program).trace.memory[0]
    assert [line.at(t)["other"] // 4000 for t in (0.0, 0.9, 1.1, 19.0)] == [1, 1, 0, 0]


class Cycle:
    def __init__(self, held):
        self.held, self.me = held, self


def test_what_the_collector_finds_dies_after_its_birth_and_before_the_end_of_its_rank():
    def program(comm, wait):
        if comm.rank == 0:
            for _ in range(5):
                torch.ones(1)
            Cycle(torch.empty(1000))  # at 5 s
            if wait:
                comm.recv(torch.empty(1), 1)
        else:
            gc.collect()  # at 0 s
            if wait:
                comm.send(torch.empty(1), 0)

    gc.collect()
    gc.disable()
    try:
        waits, ends = (
            world(2, SECOND).run(program, wait).trace.memory[0] for wait in (True, False)
        )
    finally:
        gc.enable()
    assert (
        smallest(waits.total) >= 0
        and waits.at(4.9)["other"] < 4000
        and waits.at(5.1)["other"] < 4000
    )
    assert waits.peak >= 4000 and ends.total[-1] == 4000


def test_only_the_device_of_the_world_is_followed():
    def program(comm):
        here, elsewhere = torch.ones(10, device="meta"), torch.ones(1000)
        return here + 1, elsewhere + 1

    assert world(1, where="meta").run(program).trace.memory[0].peak == 80


def test_a_failed_run_leaves_nothing_behind():
    def program(comm):
        torch.ones(10)
        if comm.rank == 1:
            raise RuntimeError("on purpose")
        comm.recv(torch.ones(10), 1)

    before = torch.utils._python_dispatch._is_in_torch_dispatch_mode, torch.UntypedStorage.resize_
    with pytest.raises(RuntimeError, match="on purpose"):
        world(3).run(program)
    assert before == (
        torch.utils._python_dispatch._is_in_torch_dispatch_mode,
        torch.UntypedStorage.resize_,
    )
    assert world(3, on_failure="continue").run(program)[1].args == ("on purpose",)
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []


def test_a_meter_within_a_metered_rank():
    def program(comm, net):
        x = torch.ones(4, 64)
        profile = measure(lambda: all_reduce_(comm, net(x)))
        return profile.flops, profile.by_operator["addmm"].calls

    results = world(2).run(program, nn.Linear(64, 8))
    assert results == [(2 * 4 * 64 * 8, 1)] * 2
    assert results.trace.memory[0].live["parameters"].max() == (64 + 1) * 8 * 4
