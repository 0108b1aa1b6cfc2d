"""A slow link: bytes take their time, also while the rank computes, and nothing else changes."""

import time

import pytest
import torch

from minidist.collectives import all_reduce_, barrier
from minidist.comm import PeerLost, RankMissing, Trace, launch
from minidist.comm.processes.endpoint import Endpoint
from minidist.comm.processes.pace import Paced, Wire
from minidist.comm.processes.rings import HEADER, SLOTS, Incoming, Rings
from minidist.comm.processes.shm import ShmComm
from tests.comm.processes.test_rings import Bytes
from tests.largest import largest

RATE = 4_000_000  # bytes per second


class Clock:
    """Stands in for `time` in a module."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr("minidist.comm.processes.pace.time", made)
    return made


def message(size, posted):
    made = Bytes(b"x" * size, header=b"h")
    made.posted = posted
    return made


def test_a_wire_is_busy_for_as_long_as_its_bytes_take():
    wire = Wire(1000.0)
    assert [wire.book(500, since) for since in (10.0, 10.0, 10.7)] == [10.5, 11.0, 11.5]
    assert wire.book(0, 20.0) == 20.0 and wire.book(100, 3.0) == 20.1


def test_segments_leave_when_their_last_byte_would_have(clock):
    rings = Rings(2, RATE)
    out = Paced(rings, 0, 1, Wire(RATE))
    into = Incoming(rings, 0, 1)
    room = Bytes(size=3 * rings.slot)
    long = message(3 * rings.slot, clock.now)
    first, full = (rings.slot - HEADER) / RATE, rings.slot / RATE
    assert not out.push(long) and out.due == 100 + first
    clock.now = 100 + first - 1e-9
    assert not out.push(long)
    clock.now = 100 + first
    assert (
        out.push(long)
        and long.moved == rings.slot - HEADER
        and out.due == pytest.approx(clock.now + full)
    )
    clock.now += 2.01 * full  # nobody looked for a while: the wire has been busy all the same
    assert out.push(long) and long.moved == 3 * rings.slot - HEADER
    assert into.pull(room) and room.moved == long.moved


def test_a_receiver_that_is_late_stops_the_wire(clock):
    rings = Rings(2, RATE)
    out, into = Paced(rings, 0, 1, Wire(RATE)), Incoming(rings, 0, 1)
    long, room = message(10 * rings.slot, clock.now), Bytes(size=10 * rings.slot)
    out.push(long)
    clock.now = 200.0
    assert out.push(long) and long.moved == SLOTS * rings.slot - HEADER  # no more room in the ring
    clock.now = 300.0
    assert not out.push(long) and into.pull(room)
    # no credit for waiting
    assert not out.push(long) and out.due == pytest.approx(300 + rings.slot / RATE)


def test_messages_to_several_ranks_share_the_wire(clock):
    rings, wire = Rings(3, RATE), Wire(RATE)
    outs = [Paced(rings, 0, dst, wire) for dst in (1, 2)]
    for out in outs:
        out.push(message(1000, clock.now))
    assert [out.due - 100 for out in outs] == pytest.approx([1000 / RATE, 2000 / RATE])


@pytest.mark.parametrize("rate", [1.0, 1e3, RATE, 1e12])
def test_a_slot_takes_5_ms_or_is_a_page_or_as_ever(rate):
    slot = Rings(2, rate).slot
    assert slot == 4096 or slot / rate <= 5e-3
    assert slot <= Rings(2).slot == Rings(2, 1e12).slot


def all_reduced(comm, numbers):
    x = torch.arange(numbers, dtype=torch.float32) + comm.rank
    barrier(comm)
    start = comm.now()
    all_reduce_(comm, x)
    return comm.now() - start, x


@pytest.mark.parametrize("n", [2, 3])
def test_bytes_take_their_time(n):
    numbers = 200_001
    sent = 2 * (n - 1) * (numbers // n) * 4
    for seconds, x in launch(all_reduced, n, numbers, rate=RATE):
        assert sent / RATE <= seconds  # and with nothing to wait for, far less:
        assert torch.equal(x, n * torch.arange(numbers, dtype=torch.float32) + sum(range(n)))
    assert min(seconds for seconds, _ in launch(all_reduced, n, numbers)) < sent / RATE


def while_computing(comm, how):
    """Seconds that are left to wait for 40 ms of messages after 0.2 s without a look at them, at best: another program
    may keep the processor for itself now and then."""
    x = torch.ones(40_000)
    y = torch.empty(40_000)
    left = []
    for _ in range(5):
        barrier(comm)
        y.zero_()
        if how == "lane":
            works = [comm.stream(lambda lane: lane.sendrecv(x, 1 - lane.rank, y, 1 - lane.rank))]
        else:
            works = [comm.irecv(y, 1 - comm.rank), comm.isend(x, 1 - comm.rank)]
        time.sleep(0.2)
        start = time.perf_counter()
        works[0].wait()
        left.append(time.perf_counter() - start)
        for work in works[1:]:
            work.wait()
        assert y.sum().item() == 40_000
    return min(left)


@pytest.mark.parametrize("how", ["lane", "main"])
def test_messages_travel_while_the_rank_computes(how):
    assert largest(launch(while_computing, 2, how, rate=RATE)) < 0.02


def idle(comm):
    """Seconds of the processor that 0.3 s of waiting for a message cost."""
    barrier(comm)
    used = time.process_time()
    all_reduce_(comm, torch.zeros(int(0.3 * RATE / 4)))
    return time.process_time() - used


def test_waiting_for_a_slow_link_costs_no_processor_time():
    assert largest(launch(idle, 2, rate=RATE)) < 0.15


def test_a_dead_rank_is_noticed_and_leaves_the_wire_asleep():
    endpoints = [
        Endpoint(rings, r, 5.0, True, Trace(2)) for rings in [Rings(2, 1e5)] for r in range(2)
    ]
    a = ShmComm(endpoints[0], [0, 1], 0)
    work = a.isend(torch.zeros(1 << 20), 1)
    endpoints[0].rings.flag(1, 2)
    with pytest.raises(PeerLost):
        work.wait()
    used = time.thread_time(), time.process_time()
    time.sleep(0.2)
    assert time.process_time() - used[1] < 0.1 and endpoints[0]._due() == float("inf")


def test_link_tells_the_rate():
    def program(comm):
        return comm.link(1 - comm.rank).beta

    assert launch(program, 2, rate=1e6) == [1e-6, 1e-6]
    assert launch(program, 2, rate=1e12) == launch(program, 2)


def test_a_rank_that_never_comes_is_still_named():
    def program(comm):
        if comm.rank == 0:
            comm.recv(torch.zeros(1), 1)
        else:
            time.sleep(5)

    with pytest.raises(RankMissing, match="rank 1 is at"):
        launch(program, 2, rate=1e6, timeout=0.3)


@pytest.mark.parametrize("rate", [0, -1.0, float("nan"), float("inf"), "fast"])
def test_rates_that_cannot_be(rate):
    with pytest.raises(ValueError, match="rate"):
        launch(all_reduced, 2, 1, rate=rate)


def test_rates_that_cannot_be_kept():
    with pytest.raises(ValueError, match=r'1e\+06 bytes/s.*transport="shm".*gloo'):
        launch(all_reduced, 2, 1, rate=1e6, transport="gloo")
    with pytest.raises(ValueError, match=r"10 bytes/s 8192 bytes take 819.2 s.*timeout of 30 s"):
        launch(all_reduced, 2, 1, rate=10)
