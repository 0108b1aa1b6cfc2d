"""Transfers that do not wait for the clock take the same time as those that do."""

from dataclasses import replace

import pytest
import torch

from minidist.collectives import all_reduce_, all_to_all, broadcast_
from minidist.comm import ANY, Cluster, Recv, Send, World
from minidist.comm.cluster.presets import H100
from minidist.comm.world.wires import Wires

ALIKE = Cluster.uniform(6, 5e-6, 1e-9, H100)
CLUSTERS = {
    "alike": ALIKE,
    "late and unequal": ALIKE.jitter(0.3).slow_rank(2, 3.0).slow_link(4, 5, 7.0),
    "a card for two": replace(Cluster.dgx1_v100(nodes=3), devices=2),
    "one node": Cluster.dgx_h100(),
}


def work(comm, i):
    """Some time of its own, another for each rank and step."""
    x = torch.ones(100 + 37 * ((comm.rank * 5 + i) % 7), 64)
    for _ in range(1 + (comm.rank + i) % 3):
        x = x * 1.5
    return x


def rings(comm):
    x = torch.full((103,), float(comm.rank))
    for i in range(4):
        work(comm, i)
        all_reduce_(comm, x, algorithm=("ring", "tree", "halving_doubling")[i % 3])
    return x, comm.now()


def pipeline(comm):
    """Neither all at once nor in step: down the ranks, and some back."""
    x = torch.full((500,), float(comm.rank))
    for i in range(6):
        if comm.rank:
            comm.recv(x, comm.rank - 1)
        x += work(comm, i).sum()
        if comm.rank + 1 < comm.size:
            comm.send(x, comm.rank + 1)
        if i % 2:
            broadcast_(comm, x, comm.size - 1)
    return x, comm.now()


def exchange(comm):
    rows = torch.arange(6.0 * comm.size).reshape(comm.size, 6) + comm.rank
    return all_to_all(comm, rows), comm.now()


def several(comm):
    """A rank whose wires are wanted twice: by a lane, by a group, by what it does not wait for."""
    x, y = torch.ones(50), torch.ones(5000)
    job = comm.stream(lambda lane: all_reduce_(lane, y, algorithm="ring"))
    work(comm, 1)
    all_reduce_(comm, x, algorithm="ring")
    half = comm.split(comm.rank % 2)
    all_reduce_(half, x, algorithm="ring")
    job.wait()
    return x, y, comm.now()


def split_later(comm):
    """A group that is made while messages are on their way: those had to wait for the clock."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    under_way = comm.batch([Send(torch.ones(50_000), right), Recv(torch.ones(50_000), left)])
    if comm.rank:
        work(comm, 2)
    half = comm.split([r // 2 for r in range(comm.size)])
    half.sendrecv(torch.ones(20), 1 - half.rank, torch.ones(20), 1 - half.rank)
    under_way.wait()
    return comm.now()


def split_meanwhile(comm):
    """Rank 1 comes late for a message that rank 0 does not wait for, which sends another one first."""
    group = [0, 1, 0, 1, 1, 1]
    if comm.rank == 0:
        under_way = comm.isend(torch.ones(50_000), 1)
        while not under_way.done() and comm.now() == 0:
            pass  # until ranks 3 and 4 have met
        comm.split(group).send(torch.ones(50_000), 1)
        under_way.wait()
    elif comm.rank == 1:
        for i in range(20):
            work(comm, i)
        comm.recv(torch.ones(50_000), 0)
    elif comm.rank == 2:
        comm.split(group).recv(torch.ones(50_000), 0)
    elif comm.rank < 5:
        comm.batch([Send(torch.ones(9), 7 - comm.rank), Recv(torch.ones(9), 7 - comm.rank)]).wait()
    return comm.now()


def together(comm):
    """Several messages of a batch want one wire: the first that is ready goes first."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    work(comm, 3)
    many = [Send(torch.ones(k), right) for k in (9, 900)] + [Send(torch.ones(90), left)]
    heard = [Recv(torch.ones(k), left) for k in (9, 900)] + [Recv(torch.ones(90), right)]
    comm.batch(many + heard).wait()
    return comm.now()


def beside_posted(comm):
    """Blocking operations of ranks that have posted others: their wires may be wanted at any time."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    y = torch.ones(30_000)
    posted = [comm.isend(torch.ones(30_000), left), comm.irecv(y, right)]
    for i in range(3):
        work(comm, i)
        comm.sendrecv(torch.ones(4000), right, torch.ones(4000), left)
    for one in reversed(posted):
        one.wait()
    comm.sendrecv(y, right, torch.ones(30_000), left)
    return y, comm.now()


def a_receiver_that_posted(comm):
    """Rank 0 blocks for a message while another one that it has posted comes to wait for the same wire."""
    if comm.rank == 0:
        late = comm.irecv(torch.ones(40_000), 1)
        comm.recv(torch.ones(50_000), 2)
        late.wait()
    elif comm.rank == 1:
        comm.sendrecv(torch.ones(2), 3, torch.ones(2), 3)
        comm.send(torch.ones(40_000), 0)
    elif comm.rank == 2:
        for i in range(2):
            work(comm, i)
        comm.send(torch.ones(50_000), 0)
    elif comm.rank == 3:
        comm.sendrecv(torch.ones(2), 1, torch.ones(2), 1)
    return comm.now()


def whoever(comm):
    if comm.rank:
        work(comm, 0)
        comm.send(torch.ones(100), 0)
        return comm.now()
    return [
        (w.wait(), w.source)[1]
        for w in [comm.irecv(torch.ones(100), ANY) for _ in range(comm.size - 1)]
    ]


ORDERED = (rings, pipeline, exchange, several, split_later, split_meanwhile, together, whoever)
PROGRAMS = [(program, ordered) for program in ORDERED for ordered in (False, True)]
# an ordered World hangs on these
PROGRAMS += [(beside_posted, False), (a_receiver_that_posted, False)]


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize(("program", "ordered"), PROGRAMS)
def test_the_same_as_if_each_waited_for_the_clock(monkeypatch, program, cluster, ordered):
    def run():
        return World(6, cluster=CLUSTERS[cluster], ordered=ordered).run(program)

    found, took = run(), []
    apart = Wires._apart
    monkeypatch.setattr(Wires, "_apart", lambda *args: took.append(apart(*args)) and False)
    wanted = run()
    torch.testing.assert_close(list(found), list(wanted), rtol=0, atol=0)
    assert found.time == wanted.time and list(found.trace) == list(wanted.trace)
    assert sorted(found.trace.spans) == sorted(wanted.trace.spans)
    assert found.trace.memory == wanted.trace.memory
    if program is not a_receiver_that_posted:  # of its two pairs, one shares a card
        assert (True in took) == (program in (rings, pipeline, exchange, beside_posted))
