"""Both ends of shared memory in one process, moved by hand."""

import threading
import time

import pytest
import torch

from minidist.comm import ANY, Deadlock, PeerLost, RankMissing, Recv, Send, Trace
from minidist.comm.processes.endpoint import Endpoint
from minidist.comm.processes.rings import Rings
from minidist.comm.processes.shm import ShmComm


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
