"""When messages start and arrive: every time here is computed by hand."""

import pytest
import torch

from minidist.comm import ANY, Deadlock, Message, Recv, Send, World

# seconds a message, seconds a byte; bytes are multiples of 4, so all times are exact
ALPHA, BETA = 2.0, 0.25


def world(n, **kwargs):
    return World(n, alpha=ALPHA, beta=BETA, **kwargs)


def nbytes(n):
    return torch.zeros(n, dtype=torch.uint8)


@pytest.mark.parametrize("n", [0, 4, 100])
def test_one_message(n):
    """α + Nβ; the sender is free after Nβ."""

    def program(comm):
        if comm.rank == 0:
            comm.send(nbytes(n), 1)
        else:
            comm.recv(nbytes(n), 0)
        return comm.now()

    w = world(2)
    results = w.run(program)
    assert results == [n * BETA, ALPHA + n * BETA]
    assert w.time == results.time == ALPHA + n * BETA
    assert (
        list(w.trace)
        == list(results.trace)
        == [Message(0, 1, n, 0.0, n * BETA, ALPHA + n * BETA, None, "main")]
    )


def test_a_transfer_waits_for_both_sides():
    def program(comm):
        if comm.rank == 0:
            comm.send(nbytes(4), 1)  # 0 to 1, there at 3
        elif comm.rank == 1:
            comm.recv(nbytes(4), 0)
            comm.send(nbytes(8), 2)  # 3 to 5, there at 7
        else:
            comm.recv(nbytes(8), 1)
        return comm.now()

    assert world(3).run(program) == [1.0, 5.0, 7.0]


def test_two_senders_to_one_receiver_share_its_wire():
    def program(comm):
        if comm.rank == 0:
            comm.batch([Recv(nbytes(8), 2), Recv(nbytes(4), 1)]).wait()
        else:
            comm.send(nbytes(4 * comm.rank), 0)
        return comm.now()

    w = world(3)
    # rank 1 first: the tie goes by rank, not by the receiver's order
    assert w.run(program) == [5.0, 1.0, 3.0]
    assert [(m.src, m.start, m.sent, m.arrived) for m in w.trace] == [(1, 0, 1, 3), (2, 1, 3, 5)]


def test_one_sender_to_two_receivers_shares_its_wire():
    def program(comm):
        if comm.rank == 0:
            comm.batch([Send(nbytes(4), 1), Send(nbytes(8), 2)]).wait()
        else:
            comm.recv(nbytes(4 * comm.rank), 0)
        return comm.now()

    assert world(3).run(program) == [3.0, 3.0, 5.0]


def test_two_way_traffic_in_a_batch_overlaps():
    def program(comm):
        comm.sendrecv(nbytes(8), 1 - comm.rank, nbytes(8), 1 - comm.rank)
        return comm.now()

    assert world(2).run(program) == [4.0, 4.0]


def test_a_ring_step_takes_the_time_of_one_message():
    def program(comm):
        for _ in range(3):
            comm.sendrecv(
                nbytes(8), (comm.rank + 1) % comm.size, nbytes(8), (comm.rank - 1) % comm.size
            )

    w = world(5)
    w.run(program)
    assert w.time == 3 * (ALPHA + 8 * BETA)


def test_messages_in_a_row_pipeline_their_latency():
    def program(comm):
        works = [
            comm.isend(nbytes(4), 1) if comm.rank == 0 else comm.irecv(nbytes(4), 0)
            for _ in range(5)
        ]
        for w in works:
            w.wait()
        return comm.now()

    assert world(2).run(program) == [5.0, 5.0 + ALPHA]


def test_wires_are_granted_in_the_order_of_readiness():
    """Rank 2 posts late but is ready first: rank 1's receive comes at 3 only."""

    def program(comm):
        if comm.rank == 0:
            comm.batch([Send(nbytes(4), 1), Send(nbytes(40), 2)]).wait()
        elif comm.rank == 1:
            comm.recv(nbytes(4), 3)  # at 3
            comm.recv(nbytes(4), 0)
        elif comm.rank == 2:
            comm.recv(nbytes(40), 0)
        else:
            comm.send(nbytes(4), 1)
        return comm.now()

    assert world(4).run(program) == [11.0, 13.0, 12.0, 1.0]


def posts_first(comm):
    """An exchange whose two sides are posted one by one, the send first."""
    peer = 1 - comm.rank
    works = [comm.isend(nbytes(4), peer), comm.irecv(nbytes(4), peer)]
    for w in works:
        w.wait()
    return comm.now()


def test_posted_one_by_one_or_in_a_batch():
    assert world(2).run(posts_first) == [3.0, 3.0]


def test_in_an_ordered_world_operations_start_in_posting_order():
    with pytest.raises(Deadlock) as caught:
        world(2, ordered=True).run(posts_first)
    rows = [row.strip() for row in str(caught.value).splitlines()]
    assert rows[0] == "no rank can go on (2 wait for each other):" and len(rows) == 7
    for rank in (0, 1):
        waits, place, queued = rows[3 * rank + 1 : 3 * rank + 4]
        sends = f"send of (4,) uint8 to rank {1 - rank}"
        assert waits == f"rank {rank} waits for {sends}"
        assert place.startswith("at test_wires.py:") and place.endswith("w.wait()")
        receive = f"receive of (4,) uint8 from rank {1 - rank}"
        assert queued == f"posted, but not started before the {sends} is over: {receive}"


def test_blocking_sends_wait_for_their_receives_in_either_mode():
    def program(comm):
        comm.send(nbytes(4), (comm.rank + 1) % comm.size)
        comm.recv(nbytes(4), (comm.rank - 1) % comm.size)

    for ordered in (False, True):
        with pytest.raises(Deadlock) as caught:
            world(3, ordered=ordered).run(program)
        rows = str(caught.value).splitlines()
        assert rows[1::2] == [
            f"  rank {r} waits for send of (4,) uint8 to rank {(r + 1) % 3}" for r in range(3)
        ]


def test_a_blocking_operation_passes_what_is_posted():
    """Rank 0's wire out is held by 8 bytes for rank 2, whose receive was there first, not by the 4 that wait."""

    def program(comm):
        if comm.rank == 0:
            posted = comm.isend(nbytes(4), 1)
            comm.send(nbytes(8), 2)  # 0 to 2, there at 4
            posted.wait()
        elif comm.rank == 1:
            comm.recv(nbytes(4), 2)  # from 4 on: 4 to 5, there at 7
            comm.recv(nbytes(4), 0)  # 7 to 8, there at 10
        else:
            comm.recv(nbytes(8), 0)
            comm.send(nbytes(4), 1)
        return comm.now()

    assert world(3).run(program) == [8.0, 10.0, 5.0]
    with pytest.raises(Deadlock):
        world(3, ordered=True).run(program)


def test_posted_messages_hold_the_wire_one_after_the_other():
    """In posting order to one rank, whatever their sizes; to another rank in the order of readiness."""

    def program(comm):
        if comm.rank == 0:
            works = [comm.isend(nbytes(k), 1) for k in (8, 4, 16)] + [comm.isend(nbytes(4), 2)]
            ends = []
            for work in reversed(works):
                work.wait()
                ends.append(work.time)
            return ends[::-1]
        works = [comm.irecv(nbytes(k), 0) for k in ((8, 4, 16), (4,))[comm.rank - 1]]
        for work in works:
            work.wait()
        return [work.time for work in works]

    assert world(3).run(program) == [[2, 3, 7, 8], [4, 5, 9], [10]]


def test_a_message_that_waits_for_its_wire_goes_before_one_that_is_ready_later():
    """At 10 rank 0's wire in is free again, and a wildcard receive finds a message at the same time."""

    def program(comm):
        if comm.rank == 0:
            works = [comm.irecv(nbytes(k), r) for k, r in ((40, 1), (4, 2))] + [
                comm.irecv(nbytes(4), ANY)
            ]
            for work in works:
                work.wait()
            return [work.time for work in works]
        if comm.rank == 3:
            comm.recv(nbytes(32), 4)  # 0 to 8, there at 10
        if comm.rank == 4:
            return comm.send(nbytes(32), 3)
        comm.send(nbytes({1: 40, 2: 4, 3: 4}[comm.rank]), 0)

    assert world(5).run(program)[0] == [12, 13, 14]


def test_one_side_in_the_other_order_is_enough():
    def program(comm):
        peer = 1 - comm.rank
        x = nbytes(4)
        y = nbytes(4)
        ops = [lambda: comm.isend(x, peer), lambda: comm.irecv(y, peer)]
        for work in [op() for op in (ops if comm.rank else ops[::-1])]:
            work.wait()
        return comm.now()

    for ordered in (False, True):
        # started once its wire is its own: both at 0
        assert world(2, ordered=ordered).run(program) == [3.0, 3.0]


def test_a_later_batch_of_an_ordered_world_starts_when_all_of_the_former_has_started():
    """Rank 0: batch (to 1, to 2), then to 3. Rank 2 comes at 3, so 3 gets nothing before, though it is ready."""

    def program(comm):
        if comm.rank == 0:
            first = comm.batch([Send(nbytes(4), 1), Send(nbytes(4), 2)])
            comm.isend(nbytes(4), 3).wait()
            first.wait()
        elif comm.rank == 2:
            comm.recv(nbytes(4), 1)
            comm.recv(nbytes(4), 0)
        else:
            comm.recv(nbytes(4), 0)
            if comm.rank == 1:
                comm.send(nbytes(4), 2)
        return comm.now()

    w = world(4, ordered=True)
    assert w.run(program) == [8.0, 4.0, 9.0, 10.0]
    starts = {(m.src, m.dst): m.start for m in w.trace}
    assert starts == {(0, 1): 0, (1, 2): 3, (0, 2): 6, (0, 3): 7}
    w = world(4)
    assert w.run(program) == [7.0, 4.0, 9.0, 4.0]  # to 3 as soon as the wire is free
    starts = {(m.src, m.dst): m.start for m in w.trace}
    assert starts == {(0, 1): 0, (0, 3): 1, (1, 2): 3, (0, 2): 6}


def test_eager_sends_leave_at_once():
    def program(comm):
        peer, y = 1 - comm.rank, nbytes(4)
        x = torch.full((4,), comm.rank, dtype=torch.uint8)
        comm.isend(x, peer).wait()
        sent = comm.now()
        x.fill_(9)  # it has left
        comm.recv(y, peer)
        return sent, comm.now(), y.tolist()

    assert world(2, rendezvous=False).run(program) == [(1.0, 3.0, [1] * 4), (1.0, 3.0, [0] * 4)]
    with pytest.raises(Deadlock):
        world(2).run(program)


def test_an_eager_message_waits_at_its_receiver():
    def program(comm):
        if comm.rank == 0:
            comm.send(nbytes(4), 2)  # there at 3
        elif comm.rank == 1:
            comm.send(nbytes(40), 2)  # behind it on the wire in: 1 to 11, there at 13
        else:
            comm.recv(nbytes(40), 1)
            comm.recv(nbytes(4), 0)
        return comm.now()

    assert world(3, rendezvous=False).run(program) == [1.0, 11.0, 13.0]


def test_an_eager_message_that_nobody_receives():
    def program(comm):
        if comm.rank == 0:
            comm.send(nbytes(4), 1)

    with pytest.raises(Deadlock, match="never received: rank 0 → rank 1"):
        world(2, rendezvous=False).run(program)


@pytest.mark.parametrize("rendezvous", [True, False])
def test_a_wildcard_receive_takes_the_earliest_not_the_first_posted(rendezvous):
    """Rank 1 runs first but is busy until 3 (rendezvous); rank 2 and 3 are ready at 0 and 12."""

    def program(comm):
        if comm.rank == 0:
            heard = []
            for _ in range(3):
                work = comm.irecv(nbytes(4), ANY)
                work.wait()
                heard.append((work.source, comm.now()))
            return heard
        if comm.rank == 1:
            comm.recv(nbytes(4), 4)  # there at 3
        if comm.rank == 3:
            comm.recv(nbytes(40), 4)  # 1 to 11, there at 13
        if comm.rank == 4:
            comm.send(nbytes(4), 1)
            return comm.send(nbytes(40), 3)
        comm.send(nbytes(4), 0)

    # Rank 2's, there at 3; then rank 1's, ready at 3 and there at 6; then rank 3's, from 13 on.
    assert world(5, rendezvous=rendezvous).run(program)[0] == [(2, 3.0), (1, 6.0), (3, 16.0)]


def test_a_late_wildcard_receive_takes_what_was_offered_first():
    """Rank 2 offers at 0, rank 1 after a message, both before rank 0 asks."""

    def program(comm):
        if comm.rank == 0:
            comm.recv(nbytes(40), 3)
            works = []
            for _ in range(2):
                works.append(comm.irecv(nbytes(4), ANY))
                works[-1].wait()
            return [work.source for work in works]
        if comm.rank == 1:
            comm.recv(nbytes(4), 3)
        if comm.rank == 3:
            comm.send(nbytes(4), 1)
            return comm.send(nbytes(40), 0)
        comm.send(nbytes(4), 0)

    assert world(4).run(program)[0] == [2, 1]


def test_a_wildcard_receive_beside_named_ones():
    def program(comm):
        if comm.rank == 0:
            named, any_ = comm.irecv(nbytes(4), 2), comm.irecv(nbytes(4), ANY)
            any_.wait()
            named.wait()
            return named.source, any_.source
        comm.send(nbytes(4), 0)

    assert world(3).run(program)[0] == (2, 1)


def test_a_mismatch_is_told_to_both_sides_and_nothing_is_copied():
    def program(comm):
        x = torch.full((2 + comm.rank,), float(comm.rank))
        with pytest.raises(
            ValueError, match=r"rank 0 sends \(2,\) float32(.|\n)*rank 1 receives \(3,\) float32"
        ):
            if comm.rank == 0:
                comm.send(x, 1)
            else:
                comm.recv(x, 0)
        if comm.rank == 0:
            comm.send(x[:2], 1)
        else:
            comm.recv(x[:2], 0)
        return x.tolist()

    assert world(2).run(program) == [[0, 0], [0, 0, 1]]


def test_lanes_share_the_rank_s_wires():
    def program(comm):
        def job(lane):
            if lane.rank == 0:
                lane.send(nbytes(4), 1)
            else:
                lane.recv(nbytes(4), 0)
            return lane.now()

        works = [comm.stream(job, lane=i) for i in range(3)]
        return [w.wait() for w in works]

    w = world(2)
    assert w.run(program) == [[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]]
    assert [m.lane for m in w.trace] == ["lane 0", "lane 1", "lane 2"]


def test_meta_tensors_take_the_same_time():
    def program(comm):
        x = torch.empty(1 << 40, device=comm.device)
        comm.sendrecv(x, 1 - comm.rank, torch.empty_like(x), 1 - comm.rank)
        return comm.split(0).size  # small messages on the CPU, on any device

    w = World(2, alpha=1.0, beta=2.0**-42, device="meta")
    assert w.run(program) == [2, 2]
    assert w.trace.bytes_sent(0) == (4 << 40) + 24

    def mixed(comm):
        x = torch.empty(2, device="meta") if comm.rank else torch.zeros(2)
        if comm.rank == 0:
            comm.send(x, 1)
        else:
            comm.recv(x, 0)

    with pytest.raises(
        ValueError, match="rank 0 sends a cpu tensor, but rank 1 receives into a meta one"
    ):
        World(2, device="meta").run(mixed)
