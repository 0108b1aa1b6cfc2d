"""Both ends of shared memory in one process, moved by hand."""

import resource
import sys
import threading
import time

import pytest
import torch

from minidist.collectives import all_reduce_, barrier
from minidist.comm import ANY, Deadlock, PeerLost, RankMissing, Recv, Send, Trace, launch
from minidist.comm.message import HEADER, SLOTS, Incoming, Rings
from minidist.comm.shm import Endpoint, Paced, ShmComm, Wire
from tests.comm.test_message import Bytes
from tests.largest import largest


def ranks(rings, timeout=0.3):
    """Three ranks; `checked`."""
    return [ShmComm(Endpoint(rings, r, timeout, True, Trace(3)), [0, 1, 2], r) for r in range(3)]


@pytest.fixture
def comms():
    return ranks(Rings(3))


def test_a_message_is_moved_by_whoever_asks(comms):
    a, b, _ = comms
    x = torch.zeros(3)
    send, receive = a.isend(torch.ones(3), 1), b.irecv(x, 0)
    assert send.done() and receive.done() and x.tolist() == [1, 1, 1]
    assert send.wait() is None and not a.endpoint.open


def test_nothing_is_taken_out_of_a_ring_before_it_is_wanted(comms):
    a, b, _ = comms
    a.isend(torch.ones(3), 1)
    b.endpoint.progress()
    assert not b.endpoint._aside and b.endpoint.rings.unread() == [(0, 1)]


def test_a_message_for_another_channel_is_put_aside(comms):
    a, b, _ = comms
    la, lb = (ShmComm(c.endpoint, c.ranks, c.rank, "main/other") for c in (a, b))
    la.isend(torch.full((2,), 5.0), 1)
    a.isend(torch.full((1,), 6.0), 1)
    x, y = torch.zeros(1), torch.zeros(2)
    assert b.irecv(x, 0).done() and x.item() == 6
    assert lb.irecv(y, 0).done() and y.tolist() == [5, 5]
    assert [m.nbytes for m in b.endpoint.trace] == [4, 8]


def test_a_long_message_to_a_channel_that_comes_later(comms):
    a, b, _ = comms
    la, lb = (ShmComm(c.endpoint, c.ranks, c.rank, "main/other") for c in (a, b))
    long = torch.arange(1 << 20)
    works = [la.isend(long, 1), a.isend(torch.ones(1), 1)]
    x, y = torch.zeros(1), torch.zeros_like(long)
    receives = [b.irecv(x, 0), lb.irecv(y, 0)]
    for _ in range(100):
        [w.done() for w in works + receives]
    assert all(w.done() for w in works + receives) and torch.equal(y, long)


def test_receives_are_served_in_their_order_whether_they_name_a_source_or_not(comms):
    a, b, c = comms
    xs = [torch.zeros(1) for _ in range(4)]
    works = [c.irecv(xs[0], ANY), c.irecv(xs[1], 1), c.irecv(xs[2], ANY), c.irecv(xs[3], 0)]
    for i, sender in enumerate((b, b, a, a)):
        sender.isend(torch.tensor([float(i)]), 2)
        c.endpoint.progress()
    assert all(w.done() for w in works)
    assert [x.item() for x in xs] == [0, 1, 2, 3]
    assert [w.source for w in works] == [1, 1, 0, 0]


def test_a_wrong_message_is_read_all_the_same(comms):
    a, b, _ = comms
    a.isend(torch.ones(1 << 20), 1)
    a.isend(torch.full((2,), 3.0), 1)
    wrong, right = b.irecv(torch.zeros(2), 0), b.irecv(x := torch.zeros(2), 0)
    for _ in range(100):
        a.endpoint.progress()
        b.endpoint.progress()
    with pytest.raises(
        ValueError, match=r"rank 0 sends \(1048576,\) float32(.|\n)*rank 1 receives \(2,\)"
    ):
        wrong.wait()
    right.wait()
    assert x.tolist() == [3, 3]


def test_a_timeout_counts_from_the_last_movement(comms):
    b = comms[1]
    start = time.monotonic()
    with pytest.raises(
        RankMissing, match=r"rank 1 waited 0.3 s for receive of \(2,\) float32 from rank 0 \[x\]"
    ):
        b.recv(torch.zeros(2), 0, label="x")
    assert 0.25 < time.monotonic() - start < 20
    assert not b.endpoint.open


def test_a_message_may_take_longer_than_the_timeout():
    a, _, c = ranks(Rings(3, rate=8e6), timeout=1.5)
    # 16 MiB: the wire needs two seconds, and moves every 5 ms
    sent = a.isend(torch.ones(1 << 22), 2)
    start = time.monotonic()
    c.recv(torch.zeros(1 << 22), 0)
    sent.wait()
    assert time.monotonic() - start > 1.5


@pytest.mark.parametrize("flag", [1, 2])
def test_what_a_lost_rank_has_sent_is_received_first(comms, flag):
    a, b, _ = comms
    a.isend(torch.ones(1), 1)
    a.endpoint.rings.flag(0, flag)
    assert b.recv(torch.zeros(1), 0).item() == 1
    with pytest.raises(
        PeerLost, match="returned before" if flag == 1 else "failed, or its process died"
    ) as caught:
        b.recv(torch.zeros(1), 0)
    assert caught.value.rank == 0
    with pytest.raises(PeerLost):
        b.send(torch.ones(1 << 20), 0)


def test_a_message_torn_by_a_death(comms):
    a, b, _ = comms
    a.isend(torch.ones(1 << 20), 1)  # what fits into the ring, then the process ends
    receive = b.irecv(torch.zeros(1 << 20), 0)
    assert not receive.done()
    a.endpoint.rings.flag(0, 2)
    with pytest.raises(PeerLost):
        receive.wait()


@pytest.mark.parametrize("flag", [1, 2])
def test_a_wildcard_hears_of_a_death_and_the_next_one_waits_for_the_others(comms, flag):
    """A rank that has returned (1) is no news while others live."""
    a, b, c = comms
    pair = ShmComm(b.endpoint, [0, 1], 1, "main/pair")
    mine = pair.irecv(torch.zeros(1), ANY)
    works = [b.irecv(torch.zeros(1), ANY) for _ in range(flag)]
    a.endpoint.rings.flag(0, flag)
    assert mine.done() and [work.done() for work in works] == [True] * (flag - 1) + [False]
    for lost in [mine, *works[:-1]]:
        with pytest.raises(PeerLost) as caught:
            lost.wait()
        assert caught.value.rank == 0
    c.isend(torch.ones(1), 1)
    works[-1].wait()
    assert works[-1].source == 2


def test_close_waits_and_finds_what_was_never_received(comms):
    a, b, c = comms
    ShmComm(a.endpoint, a.ranks, 0, "main/other").isend(torch.ones(1), 1)
    a.isend(torch.ones(1), 1)
    b.irecv(torch.zeros(1), 0)
    with pytest.raises(
        Deadlock, match="rank 1 returned, but a message from rank 0 was never received"
    ):
        b.endpoint.close()
    c.endpoint.close()
    assert c.endpoint.rings.flags[2] == 1
    a.irecv(torch.zeros(1), 1)
    with pytest.raises(RankMissing):
        a.endpoint.close()


def test_a_batch_with_a_bad_operation_posts_nothing(comms):
    a, b, _ = comms
    with pytest.raises(ValueError, match="meta"):
        a.batch([Send(torch.ones(1), 1), Recv(torch.ones(1, device="meta"), 1)])
    assert not a.endpoint.open and b.endpoint.rings.unread() == []


def test_threads_share_an_endpoint(comms):
    """Four lanes on either side, each with its channel; whoever listens moves the others' messages, too."""
    a, b, _ = comms
    lanes, errors = range(4), []
    a.endpoint.timeout = b.endpoint.timeout = 20
    a.endpoint.shared = b.endpoint.shared = True

    def talk(comm, peer, lane):
        mine = ShmComm(comm.endpoint, comm.ranks, comm.rank, f"main/lane {lane}")
        try:
            for i in range(100):
                x = torch.full((1 + 700 * (i % 3),), float(lane + i))
                y = mine.sendrecv(x, peer, torch.zeros_like(x), peer)
                assert torch.equal(x, y)
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=talk, args=(c, 1 - c.rank, lane)) for c in (a, b) for lane in lanes
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    assert not errors and not any(t.is_alive() for t in threads)
    assert a.endpoint.trace.messages() == b.endpoint.trace.messages() == 400


def test_channels_know_their_lane(comms):
    a, b, _ = comms
    work = a.stream(lambda lane: lane.channel)
    assert work.wait() == "main/lane 0"
    assert a._subgroup([2, 0], "1.7").ranks == [2, 0] and a._subgroup([2, 0], "1.7").rank == 1
    assert b.link(0).beta > 0 and b.now() <= b.now()


# ------------------------------------------------------------
# A slow link: bytes take their time, also while the rank computes, and nothing else changes.


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
    monkeypatch.setattr("minidist.comm.shm.time", made)
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


# ------------------------------------------------------------
# Memory that a rank has freed is there for its next tensor.


MIB = 1 << 20


def faults(comm, lane):
    """Page faults of making, filling and freeing 48 MiB, the twentieth time and later."""

    def again(_=None):
        seen = []
        for _ in range(24):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            torch.ones(12 * MIB)
            seen.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        return seen[19:]

    return comm.stream(again).wait() if lane else again()


@pytest.mark.skipif(sys.platform != "linux", reason="another malloc")
@pytest.mark.parametrize("lane", [False, True])
def test_freed_memory_is_found_again(lane):
    assert largest(launch(faults, 1, lane)[0]) < 48 * MIB / 4096 / 10
