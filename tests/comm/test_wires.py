"""When messages start and arrive: every time here is computed by hand."""

from collections import deque

import pytest
import torch

from minidist.collectives import all_reduce_
from minidist.comm import (
    ANY,
    Cluster,
    Deadlock,
    Level,
    Message,
    Mismatch,
    PeerLost,
    Recv,
    Send,
    World,
)
from minidist.comm.cluster import H100
from minidist.comm.wires import Channel, Fifo, Op, Routes, occupy, starts
from tests.comm.test_posted_order import (
    CASES,
    actions_of,
    checked,
    messages_of,
    random_program,
    random_programs,
)

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


# ------------------------------------------------------------
# Posted operations of a World: with what else they meet; and an ordered World, which starts them one after another.


UNEQUAL = Cluster.uniform(4, 5e-6, 1e-9, H100).jitter(0.3).slow_rank(2, 3.0).slow_link(1, 3, 7.0)
WORLDS = {
    "metered": dict(cluster=UNEQUAL, meter=True),
    "two of a node, two of another": dict(cluster=Cluster.dgx1_v100(nodes=2)),
    "eager": dict(rendezvous=False),
    "others go on": dict(on_failure="continue"),
}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_any_order_is_right(case, world):
    assert sum(World(4, **WORLDS[world]).run(checked, case)) > 0


@pytest.mark.parametrize("world", WORLDS)
def test_random_programs(world):
    assert sum(World(4, **WORLDS[world]).run(random_programs, range(20, 40))) == 20 * 40


def shapes(comm, case):
    """The case without its values."""
    return [tuple(received.shape) for received, _ in case(comm)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_meta_tensors_take_the_same_messages_at_the_same_times(case):
    real = World(4, cluster=UNEQUAL, meter=False).run(shapes, case)
    meta = World(4, cluster=UNEQUAL, meter=False, device="meta").run(shapes, case)
    assert real == meta
    assert list(real.trace) == list(meta.trace)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_two_runs_are_the_same_bit_for_bit(n):
    one, two = World(n, cluster=UNEQUAL), World(n, cluster=UNEQUAL)
    one.run(random_programs, range(5))
    two.run(random_programs, range(5))
    assert one.time == two.time > 0
    assert one.trace == two.trace and len(one.trace) > 0


def test_messages_of_one_way_do_not_overtake_each_other():
    """In matching nor in time: on each way they leave and arrive in the order in which they were sent."""
    world = World(4, cluster=UNEQUAL)
    for seed in range(10):
        world.run(random_program, seed)
        sizes = {}
        for message in sorted(world.trace, key=lambda m: (m.start, m.sent)):
            sizes.setdefault((message.src, message.dst), []).append(message.nbytes // 4)
        for way, sent in sizes.items():
            assert sent == [size for src, dst, size in messages_of(seed, 4) if (src, dst) == way]


# What an ordered World does, by a model of its own: each rank has a queue, whose head may meet another queue's head.


def hangs(n, messages, programs):
    """Whether an ordered World would stop: `programs` by rank, lists of ("post" or "wait", number of the message)."""
    todo = [deque(program) for program in programs]
    queues = [deque() for _ in range(n)]
    over = set()  # (rank, number of the message)
    moved = True
    while moved:
        moved = False
        for rank in range(n):
            while todo[rank] and (todo[rank][0][0] == "post" or (rank, todo[rank][0][1]) in over):
                act, i = todo[rank].popleft()
                moved = True
                if act == "post":
                    queues[rank].append(i)
        for i, (src, dst, _) in enumerate(messages):
            if queues[src] and queues[dst] and queues[src][0] == i == queues[dst][0]:
                queues[src].popleft()
                queues[dst].popleft()
                over |= {(src, i), (dst, i)}
                moved = True
    return any(todo) or any(queues)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_an_ordered_world_stops_exactly_where_a_stream_without_groups_does(n, figure):
    verdicts = []
    for seed in range(40):
        count = 2 + seed % 12
        messages = messages_of(seed, n, count)
        wanted = hangs(n, messages, [actions_of(seed, rank, messages) for rank in range(n)])
        found = False
        try:
            World(n, ordered=True).run(random_program, seed, count)
        except Deadlock:
            found = True
        assert found == wanted, f"seed {seed}"
        World(n).run(random_program, seed, count)  # as in MPI: never
        verdicts.append(wanted)
    figure(
        f"{n} ranks: {sum(verdicts)} of 40 random programs stop, the same as by a model of queues"
    )
    assert 3 < sum(verdicts) < 37  # both happen


def test_a_batch_is_what_an_ordered_world_needs():
    def program(comm, grouped):
        peer, y = 1 - comm.rank, torch.empty(3)
        ops = [Send(torch.full((3,), float(comm.rank)), peer), Recv(y, peer)]
        for work in [comm.batch(ops)] if grouped else [comm.batch([op]) for op in ops]:
            work.wait()
        return y.tolist()

    assert (
        World(2, ordered=True).run(program, True)
        == World(2).run(program, False)
        == [[1.0] * 3, [0.0] * 3]
    )
    with pytest.raises(Deadlock, match="not started before the send"):
        World(2, ordered=True).run(program, False)


def test_what_waits_behind_a_wildcard_hears_of_a_death():
    """Rank 1 is gone: the wildcard receive is told, and so is the receive from it; that from rank 2 is not."""

    def program(comm):
        if comm.rank == 1:
            raise ValueError("gone")
        if comm.rank == 2:
            return comm.send(torch.ones(1), 0)
        anyone, lost, named = (comm.irecv(torch.empty(1), src) for src in (ANY, 1, 2))
        told = []
        for work in (lost, anyone):
            with pytest.raises(PeerLost) as caught:
                work.wait()
            told.append(caught.value.rank)
        named.wait()
        return told

    for rendezvous in (True, False):
        assert World(3, on_failure="continue", rendezvous=rendezvous).run(program)[0] == [1, 1]


def test_posted_operations_of_the_living_go_on_past_a_death():
    """What rank 0 has posted to the dead rank fails; what it posted after it does not wait for that."""

    def program(comm):
        if comm.rank == 1:
            comm.recv(torch.empty(1), 2)
            raise ValueError("gone")
        peer = 2 - comm.rank
        dead = comm.irecv(torch.empty(1), 1)
        y = torch.empty(1)
        alive = [comm.isend(torch.full((1,), float(comm.rank)), peer), comm.irecv(y, peer)]
        for work in alive:
            work.wait()
        if comm.rank == 2:
            comm.send(torch.ones(1), 1)
        with pytest.raises(PeerLost, match="rank 1 is lost"):
            dead.wait()
        return y.item()

    assert World(3, on_failure="continue").run(program)[::2] == [2.0, 0.0]


def test_a_deadlock_of_posted_operations_names_what_nobody_posts():
    def program(comm):
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        a = comm.isend(torch.ones(2), right)
        b = comm.irecv(torch.empty(2), left)
        c = comm.irecv(torch.empty(3), left)  # a second message, which nobody sends
        for work in (c, b, a):
            work.wait()

    with pytest.raises(Deadlock) as caught:
        World(3).run(program)
    rows = str(caught.value).splitlines()
    assert rows[1::2] == [
        f"  rank {r} waits for receive of (3,) float32 from rank {(r - 1) % 3}" for r in range(3)
    ]


def test_after_a_mismatch_all_that_is_posted_still_matches():
    """The two that say different things are told; what was posted before and after them goes its way."""

    def program(comm):
        peer = 1 - comm.rank
        y = torch.empty(2)
        z = torch.empty(2)
        before = [comm.isend(torch.full((2,), 1.0 + comm.rank), peer), comm.irecv(y, peer)]
        unlike = [
            comm.isend(torch.ones(10 + 2 * comm.rank), peer),
            comm.irecv(torch.empty(10 + 2 * comm.rank), peer),
        ]
        after = [comm.isend(torch.full((2,), 3.0 + comm.rank), peer), comm.irecv(z, peer)]
        for work in after + before:
            work.wait()
        for work in unlike:
            with pytest.raises(
                Mismatch, match=r"sends \(1[02],\) float32(.|\n)*receives \(1[02],\) float32"
            ):
                work.wait()
        return y.tolist() + z.tolist(), all_reduce_(comm, torch.ones(5)).tolist()

    found = [([2.0, 2.0, 4.0, 4.0], [2.0] * 5), ([1.0, 1.0, 3.0, 3.0], [2.0] * 5)]
    for rendezvous in (True, False):
        assert World(2, rendezvous=rendezvous).run(program) == found


def test_a_batch_may_follow_another_one():
    """Rank 0's message to rank 2 could leave at 0; it is to follow that to rank 1, which leaves at 3."""

    def program(comm, follows):
        if comm.rank == 0:
            first = comm.isend(torch.zeros(4, dtype=torch.uint8), 1)
            second = comm.batch(
                [Send(torch.zeros(8, dtype=torch.uint8), 2)], after=first if follows else None
            )
            second.wait()
            first.wait()
        elif comm.rank == 1:
            comm.recv(torch.zeros(4, dtype=torch.uint8), 3)  # there at 3
            comm.recv(torch.zeros(4, dtype=torch.uint8), 0)
        elif comm.rank == 2:
            comm.recv(torch.zeros(8, dtype=torch.uint8), 0)
        else:
            comm.send(torch.zeros(4, dtype=torch.uint8), 1)
        return comm.now()

    world = World(4, alpha=2.0, beta=0.25)
    assert world.run(program, True) == [6.0, 6.0, 8.0, 1.0]
    assert world.run(program, False) == [4.0, 6.0, 4.0, 1.0]
    assert World(4, alpha=2.0, beta=0.25, ordered=True).run(program, False) == [6.0, 6.0, 8.0, 1.0]


def test_after_asks_for_nothing_where_there_is_nothing_to_wait_for(run):
    """All worlds take it; what it follows may be over, or never have been anything."""

    def program(comm):
        peer, y = 1 - comm.rank, [torch.empty(2) for _ in range(3)]
        work = comm.batch([])
        for i in range(3):
            ops = [Send(torch.full((2,), float(10 * comm.rank + i)), peer), Recv(y[i], peer)]
            work = comm.batch(ops, after=work)
            if i == 1:
                work.wait()
        work.wait()
        return torch.cat(y).tolist()

    assert run(program, 2) == [[10.0, 10.0, 11.0, 11.0, 12.0, 12.0], [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]]


def test_what_follows_a_message_to_the_dead_still_starts():
    def program(comm):
        if comm.rank == 1:
            raise ValueError("gone")
        if comm.rank == 2:
            return comm.recv(torch.empty(1), 0).item()
        lost = comm.isend(torch.ones(1), 1)
        comm.batch([Send(torch.full((1,), 5.0), 2)], after=lost).wait()
        with pytest.raises(PeerLost):
            lost.wait()

    assert World(3, on_failure="continue").run(program)[2] == 5.0


# ------------------------------------------------------------
# Wires: which of them a message finds busy, and for how long it holds them.


SHARED = Cluster(
    links={
        "nvlink": Level(1.0, 0.5),
        "nic": Level(2.0, 0.25, share=2),
        "spine": Level(0.0, 1.0, share=4),
    },
    devices=2,
    nodes=4,
    rack=2,
)


def test_a_pair_has_the_wires_of_its_route():
    routes = Routes(SHARED)
    pair = routes(0, 4)
    assert (pair.alpha, pair.beta) == SHARED.link(0, 4) == (2.0, 1.0)
    assert len({pair.out, pair.into, *(wire for wire, _ in pair.shared)}) == 6 == len(routes.wires)
    # NIC out and in, uplink, downlink
    assert [beta for _, beta in pair.shared] == [0.25, 0.25, 1.0, 1.0]
    assert routes(0, 4).out is pair.out and len(routes.wires) == 6


def test_pairs_share_what_they_share():
    routes = Routes(SHARED)
    one = routes(0, 4)
    other = routes(1, 5)
    back = routes(5, 1)
    assert one.shared == other.shared and not {one.out, one.into} & {other.out, other.into}
    # duplex
    assert not {back.out, back.into} & {other.out, other.into} and not {*back.shared} & {
        *other.shared
    }
    assert routes(0, 5).out == one.out != routes(0, 1).out  # a port for each level


def test_start_and_occupy():
    routes = Routes(SHARED)
    way = routes(0, 4)
    assert starts(way, 3.0) == 3.0
    assert occupy(way, 8, 3.0) == 11.0  # ports: 8 bytes at the uplink's 1 s
    nic, uplink = way.shared[0][0], way.shared[2][0]
    assert [w.free for w in (way.out, way.into, nic, uplink)] == [11.0, 11.0, 5.0, 11.0]
    assert starts(way, 3.0) == 11.0 and starts(way, 12.0) == 12.0
    assert starts(routes(1, 2), 4.0) == 5.0  # the NIC that it shares with rank 0
    assert starts(routes(2, 4), 4.0) == 11.0  # the uplink
    assert occupy(way, 8, 20.0, factor=1.5) == 32.0 and nic.free == 23.0


# ------------------------------------------------------------
# Pairs and streams of a channel.


def channel():
    return Channel("main/lane 3", Routes(Cluster.uniform(6, 1.0, 1.0)))


def waiting(pair, sending, time):
    op = Op(None, torch.ones(1), None, sending, pair)
    op.time = time
    pair.put(op)
    return op


def test_a_pair_is_found_from_both_ends():
    c = channel()
    group = [5, 1, 3]
    five, three = c.stream(5, group), c.stream(3, group)
    pair = five.pairs[2]  # rank 2 of the group is rank 3 of the World
    assert pair is three.pairs[~0] is five.pairs[2] is c.pair(5, 3)
    assert (pair.src, pair.dst, pair.alpha, pair.beta) == (
        5,
        3,
        1.0,
        1.0,
    ) and pair is not three.pairs[0]
    assert five.pairs == {2: pair} and c.stream(5, group) is five and c.lane == "lane 3"


def test_offers_are_the_oldest_sends_in_order_of_time():
    c = channel()
    late, early = waiting(c.pair(1, 0), True, 2.0), waiting(c.pair(2, 0), True, 1.0)
    waiting(c.pair(1, 0), True, 0.5)  # behind another of its rank
    waiting(c.pair(3, 0), False, 0.0)  # a receive
    waiting(c.pair(0, 1), True, 0.0)  # elsewhere
    tie = waiting(c.pair(4, 0), True, 1.0)
    assert c.offers(0) == [early, tie, late]
    assert c.pair(3, 0).offer() is None and c.pair(5, 0).offer() is None
    assert sum(len(list(queue)) for queue in c.queues()) == 6


def test_first_in_first_out():
    queue = Fifo()
    assert queue.take() is None and list(queue) == []
    taken = []
    for step in range(30):
        queue.put(step)
        if step % 3 == 0:
            taken.append(queue.take())
    assert taken == list(range(10)) and list(queue) == list(range(10, 30)) and queue.first == 10
    queue.keep([n for n in queue if n % 5 == 0])
    assert [queue.take() for _ in range(5)] == [10, 15, 20, 25, None]
    queue.put("again")
    assert queue.first == "again"
