"""Posted operations of a World: with what else they meet; and an ordered World, which starts them one after another."""

from collections import deque

import pytest
import torch

from minidist.collectives import all_reduce_
from minidist.comm import ANY, Cluster, Deadlock, Mismatch, PeerLost, Recv, Send, World
from minidist.comm.cluster.presets import H100
from tests.comm.test_posted_order import (
    CASES,
    actions_of,
    checked,
    messages_of,
    random_program,
    random_programs,
)

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
def test_an_ordered_world_stops_exactly_where_a_stream_without_groups_does(n):
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
