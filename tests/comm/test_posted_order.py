"""Posted operations match as in MPI, in all worlds: whatever the order in which a rank posts them or waits for them.

Messages from one rank to another match in the order of posting; nothing else orders them. Each case is a program that
returns pairs (what was received, what the sender had), for any number of ranks from 2 on.
"""

import itertools
import random
import time
from typing import NamedTuple

import pytest
import torch

from minidist.collectives import all_reduce_
from minidist.comm import ANY, Recv, Send
from tests.size import FULL

SIZES = (5, 0, 1, 1000, 70_000)  # the last one is more than a slot of a ring in shared memory


def values(comm, src, dst, i=0, size=5):
    """What the `i`-th message from `src` to `dst` carries."""
    return torch.full((size,), 100.0 * src + 10 * dst + i, device=comm.device)


def empty(comm, size=5):
    return torch.full((size,), -1.0, device=comm.device)


def neighbours(comm):
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def around(comm, first, order):
    """One message around the ring: post `first` before the other one, wait in this order."""
    right, left = neighbours(comm)
    y, works = empty(comm), {}
    for kind in ("send", "receive") if first == "send" else ("receive", "send"):
        if kind == "send":
            works[kind] = comm.isend(values(comm, comm.rank, right), right)
        else:
            works[kind] = comm.irecv(y, left)
    for kind in order:
        works[kind].wait()
    return [(y, values(comm, left, comm.rank))]


def send_first(comm):
    return around(comm, "send", ["send", "receive"])


def send_first_waits_crossed(comm):
    return around(comm, "send", ["receive", "send"])


def receive_first(comm):
    return around(comm, "receive", ["receive", "send"])


def receive_first_waits_crossed(comm):
    return around(comm, "receive", ["send", "receive"])


def another_order_on_each_rank(comm):
    return around(
        comm,
        ("send", "receive")[comm.rank % 2],
        ("send", "receive")[:: 1 - 2 * (comm.rank // 2 % 2)],
    )


def many_outstanding(comm):
    """Sixty messages each way, sends posted first; waits from the last to the first."""
    right, left = neighbours(comm)
    works = [comm.isend(values(comm, comm.rank, right, i), right) for i in range(60)]
    ys = [empty(comm) for _ in range(60)]
    works += [comm.irecv(y, left) for y in ys]
    for work in reversed(works):
        work.wait()
    return [(y, values(comm, left, comm.rank, i)) for i, y in enumerate(ys)]


def mixed_sizes(comm):
    """Large and small ones to every rank, waited for in a random order."""
    others = [r for r in range(comm.size) if r != comm.rank]
    works, found = [], []
    for i, size in enumerate(SIZES):
        works += [comm.isend(values(comm, comm.rank, r, i, size), r) for r in others]
    for i, size in enumerate(SIZES):
        for r in others:
            y = empty(comm, size)
            works.append(comm.irecv(y, r))
            found.append((y, values(comm, r, comm.rank, i, size)))
    random.Random(comm.rank).shuffle(works)
    for work in works:
        work.wait()
    return found


def peers_out_of_order(comm):
    """Sends go to rising ranks, receives come from falling ones, and waits begin with the last posted."""
    others = [r for r in range(comm.size) if r != comm.rank]
    works = [comm.isend(values(comm, comm.rank, r), r) for r in others]
    ys = {r: empty(comm) for r in others}
    works += [comm.irecv(ys[r], r) for r in reversed(others)]
    for work in reversed(works):
        work.wait()
    return [(ys[r], values(comm, r, comm.rank)) for r in others]


def a_batch_between(comm):
    """Single operations, and a batch that is waited for before them."""
    right, left = neighbours(comm)
    ys = [empty(comm) for _ in range(3)]
    a = comm.isend(values(comm, comm.rank, right, 0), right)
    b = comm.batch([Send(values(comm, comm.rank, right, 1), right), Recv(ys[0], left)])
    c = comm.irecv(ys[1], left)
    d = comm.isend(values(comm, comm.rank, right, 2), right)
    e = comm.irecv(ys[2], left)
    for work in (b, e, d, a, c):
        work.wait()
    return [(y, values(comm, left, comm.rank, i)) for i, y in enumerate(ys)]


def blocking_beside_posted(comm):
    """Blocking operations pass those that are posted and that nobody has met."""
    right, left = neighbours(comm)
    late, early = empty(comm), empty(comm)
    if comm.size > 2:
        posted = [comm.isend(values(comm, comm.rank, left, 1), left), comm.irecv(late, right)]
        wanted = values(comm, right, comm.rank, 1)
        comm.sendrecv(values(comm, comm.rank, right), right, early, left)
    else:  # both neighbours are one rank, so the sendrecv comes second
        posted = [comm.isend(values(comm, comm.rank, left), left), comm.irecv(early, right)]
        wanted = values(comm, right, comm.rank, 1)
        comm.sendrecv(values(comm, comm.rank, right, 1), right, late, left)
    for work in posted:
        work.wait()
    return [(late, wanted), (early, values(comm, left, comm.rank))]


def a_collective_between(comm):
    """Operations stay posted during a collective, which uses the same ways in the same order on all ranks."""
    right, left = neighbours(comm)
    y, total = empty(comm), torch.ones(7, device=comm.device)
    a = comm.isend(values(comm, comm.rank, right), right)
    b = comm.irecv(y, left)
    all_reduce_(comm, total, algorithm="ring")
    a.wait()
    b.wait()
    return [
        (y, values(comm, left, comm.rank)),
        (total, torch.full((7,), float(comm.size), device=comm.device)),
    ]


def the_later_one_is_needed_first(comm):
    """The last rank posts receives from all others, the first of which waits for an answer to the last of them."""
    last, found = comm.size - 1, []
    if comm.rank == last:
        ys = [empty(comm) for _ in range(last)]
        works = [comm.irecv(y, r) for r, y in enumerate(ys)]
        for r in reversed(range(last)):
            works[r].wait()
            found.append((ys[r], values(comm, r, last)))
            if r:
                comm.send(values(comm, last, r - 1), r - 1)  # lets it go
    else:
        if comm.rank < last - 1:
            y = comm.recv(empty(comm), last)
            found.append((y, values(comm, last, comm.rank)))
        comm.send(values(comm, comm.rank, last), last)
    return found


def a_send_that_nobody_meets_yet(comm):
    """Rank 0's message to rank 1 is met only after its message to the last rank has come all the way around."""
    last = comm.size - 1
    if comm.rank == 0:
        first = comm.isend(values(comm, 0, 1, 0, 70_000), 1)
        if last > 1:
            comm.send(values(comm, 0, last), last)
        first.wait()
        return []
    found = []
    if comm.rank == last and last > 1:
        found.append((comm.recv(empty(comm), 0), values(comm, 0, last)))
    elif last > 1:
        found.append(
            (comm.recv(empty(comm), comm.rank + 1), values(comm, comm.rank + 1, comm.rank))
        )
    if comm.rank > 1:
        comm.send(values(comm, comm.rank, comm.rank - 1), comm.rank - 1)
    else:
        found.append((comm.recv(empty(comm, 70_000), 0), values(comm, 0, 1, 0, 70_000)))
    return found


def polled(comm):
    """Nobody waits: every rank asks until all is done, the last posted first."""
    right, left = neighbours(comm)
    ys = [empty(comm) for _ in range(4)]
    works = [comm.isend(values(comm, comm.rank, right, i), right) for i in range(4)]
    works += [comm.irecv(y, left) for y in ys]
    while works:
        works = [work for work in reversed(works) if not work.done()][::-1]
    return [(y, values(comm, left, comm.rank, i)) for i, y in enumerate(ys)]


def never_waited_for(comm):
    """What a program does not wait for is done when it ends; here the next one follows a receive."""
    right, left = neighbours(comm)
    y = empty(comm)
    comm.isend(values(comm, comm.rank, right), right)
    comm.irecv(y, left).wait()
    return [(y, values(comm, left, comm.rank))]


def on_lanes(comm):
    """Lanes and the program post beside each other, each in an order of its own."""

    def job(lane, i):
        right, left = neighbours(lane)
        y = empty(lane)
        if i:
            works = [lane.irecv(y, left), lane.isend(values(lane, lane.rank, right, i), right)]
        else:
            works = [lane.isend(values(lane, lane.rank, right, i), right), lane.irecv(y, left)]
        for work in works:
            work.wait()
        return y, values(lane, left, lane.rank, i)

    jobs = [comm.stream(job, i, lane=i % 2) for i in range(4)]
    found = send_first(comm)
    return found + [work.wait() for work in reversed(jobs)]


def any_before_named(comm):
    """A wildcard receive that was posted first takes the first message, a named one the next."""
    if comm.rank == 1:
        comm.batch([Send(values(comm, 1, 0, 0), 0), Send(values(comm, 1, 0, 1), 0)]).wait()
    if comm.rank:
        return []
    x, y = empty(comm), empty(comm)
    anyone, named = comm.irecv(x, ANY), comm.irecv(y, 1)
    named.wait()
    anyone.wait()
    assert anyone.source == 1
    return [(x, values(comm, 1, 0, 0)), (y, values(comm, 1, 0, 1))]


def named_before_any(comm):
    """A named receive that was posted first takes its rank's first message, whoever waits first."""
    if comm.rank == 1:
        comm.batch([Send(values(comm, 1, 0, 0), 0), Send(values(comm, 1, 0, 1), 0)]).wait()
    if comm.rank:
        return []
    x, y = empty(comm), empty(comm)
    named, anyone = comm.irecv(y, 1), comm.irecv(x, ANY)
    anyone.wait()
    named.wait()
    assert anyone.source == 1
    return [(y, values(comm, 1, 0, 0)), (x, values(comm, 1, 0, 1))]


def wildcards_among_all(comm):
    """Every rank has posted a send to rank 0, and rank 0 one to each, before it hears whoever comes."""
    if comm.rank:
        y = empty(comm)
        out, back = comm.isend(values(comm, comm.rank, 0), 0), comm.irecv(y, 0)
        out.wait()
        back.wait()
        return [(y, values(comm, 0, comm.rank))]
    backs = [comm.isend(values(comm, 0, r), r) for r in range(1, comm.size)]
    ys = [empty(comm) for _ in backs]
    works = [comm.irecv(y, ANY) for y in ys]
    for work in works + backs:
        work.wait()
    assert sorted(work.source for work in works) == list(range(1, comm.size))
    return [(y, values(comm, work.source, 0)) for y, work in zip(ys, works)]


CASES = (
    send_first,
    send_first_waits_crossed,
    receive_first,
    receive_first_waits_crossed,
    another_order_on_each_rank,
    many_outstanding,
    mixed_sizes,
    peers_out_of_order,
    a_batch_between,
    blocking_beside_posted,
    a_collective_between,
    the_later_one_is_needed_first,
    a_send_that_nobody_meets_yet,
    polled,
    never_waited_for,
    on_lanes,
    any_before_named,
    named_before_any,
    wildcards_among_all,
)


def compare(found):
    """Whether all that was received is what was sent; how many messages were compared."""
    for received, wanted in found:
        assert received.shape == wanted.shape
        assert torch.equal(received, wanted), (
            f"received {received[:3].tolist()}…, sent were {wanted[:3].tolist()}…"
        )
    return len(found)


def checked(comm, case):
    return compare(case(comm))


def one_after_another(comm, cases):
    """All cases in one run, each in a group of its own: a wildcard must not hear who is further on already."""
    return sum(checked(comm.split([0] * comm.size), case) for case in cases)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_any_order_is_right(run_fast, case):
    assert sum(run_fast(checked, 4, case, timeout=15)) > 0


@pytest.mark.parametrize("n", [2, 3, 4, 8] if FULL else [2, 3, 8])
def test_any_order_is_right_for_other_numbers_of_ranks(run, n):
    assert sum(run(one_after_another, n, CASES, timeout=30)) >= n * len(CASES)


@pytest.mark.parametrize("size", [5, 2_500_000] if FULL else [5])
def test_a_send_may_be_waited_for_before_the_receive(run, size, figure, request):
    """Everyone posts a send, then a receive, and waits for the send first: 20 bytes, and 10 MB."""

    def program(comm):
        start = time.monotonic()
        left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        y = torch.zeros(size)
        a = comm.isend(torch.full((size,), float(comm.rank)), right)
        b = comm.irecv(y, left)
        a.wait()
        b.wait()
        return y.unique().tolist() == [left], time.monotonic() - start

    results = run(program, 4, timeout=20)
    where = request.node.callspec.params["run"]
    figure(f"{where}, {4 * size:,} bytes: {1e3 * max(seconds for _, seconds in results):.0f} ms")
    assert all(right for right, _ in results)


# Random programs.
#
# All messages have a place in one sequence, 0, 1, 2, …. A program that did them one by one, blocking, would be right:
# it is the sequential model. Each rank posts its side of message i before or at i's turn, and waits for it at its turn
# or later. So all is posted that any wait depends on, and no rank can be stuck, whatever else the order is.


class Message(NamedTuple):
    src: int
    dst: int
    size: int


def messages_of(seed, n, count=40):
    """The sequence: who sends how many numbers to whom."""
    rng = random.Random(seed)
    return [
        Message(*rng.sample(range(n), 2), rng.choice([0, 1, 7, 300, 20_000])) for _ in range(count)
    ]


def actions_of(seed, rank, messages):
    """What this rank does: ("post" or "wait", number of the message), in an order that the sequence allows."""
    rng = random.Random(f"{seed} {rank}")
    turns = []
    latest = {}
    ties = {}
    for i in reversed(range(len(messages))):
        way = messages[i].src, messages[i].dst
        if rank in way:
            # messages of one way stay in order
            early = min(i - rng.choice([0, 0, 2, 10, 30]), latest.get(way, i))
            latest[way] = early
            turns.append((early, 0, ties.setdefault(way, rng.random()), i, "post"))
            turns.append((i + rng.choice([0, 0, 3, 20]), 1, rng.random(), i, "wait"))
    return [(act, i) for *_, i, act in sorted(turns)]


def random_program(comm, seed, count=40):
    """Do what the seed says; the messages that came, in the order of the sequence."""
    messages = messages_of(seed, comm.size, count)
    works, buffers = {}, {}
    for act, i in actions_of(seed, comm.rank, messages):
        src, dst, size = messages[i]
        if act == "wait":
            works[i].wait()
        elif src == comm.rank:
            works[i] = comm.isend(values(comm, src, dst, i, size), dst)
        else:
            buffers[i] = empty(comm, size)
            works[i] = comm.irecv(buffers[i], src)
    return [
        (buffers[i], values(comm, messages[i].src, comm.rank, i, messages[i].size))
        for i in sorted(buffers)
    ]


def random_programs(comm, seeds):
    return sum(compare(random_program(comm, seed)) for seed in seeds)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_random_programs_give_what_the_sequence_gives(run, n, figure, request):
    seeds = 36 if FULL else 12
    assert sum(run(random_programs, n, range(seeds), timeout=30)) == seeds * 40
    where = request.node.callspec.params["run"]
    count = f"{seeds * 40:,} messages of {seeds} random programs"
    figure(f"{where}, {n} ranks: {count} hold what their senders had")


def test_random_programs_keep_to_their_rule():
    """Posts of one way rise; every message is posted before it is waited for, and both by both of its ranks."""
    for seed, n in itertools.product(range(12), (2, 3, 4)):
        messages = messages_of(seed, n)
        done = []
        for rank in range(n):
            actions = actions_of(seed, rank, messages)
            for i, (src, dst, _) in enumerate(messages):
                if rank in (src, dst):
                    assert actions.index(("post", i)) < actions.index(("wait", i))
            for way in itertools.permutations(range(n), 2):
                posted = [i for act, i in actions if act == "post" and messages[i][:2] == way]
                assert posted == sorted(posted)
            done += [i for act, i in actions if act == "wait"]
        assert sorted(done) == sorted(2 * list(range(40)))
