"""A worker's pushes and pulls, against a server written by hand in each test."""

import pytest
import torch

from minidist.comm import World
from minidist.comm.base import PeerLost
from minidist.parallel.server import Partition
from minidist.parallel.server.worker import Channel, Worker

SIZES = [(2, 2), (3,)]


def worker_or_channels(comm, servers):
    params = [torch.nn.Parameter(torch.zeros(size)) for size in SIZES]
    partition, channels = (
        Partition(params, servers),
        [Channel.of(comm, one, servers) for one in range(servers)],
    )
    if comm.rank < servers:
        return partition, channels[comm.rank]
    return params, Worker(partition, channels, comm.rank - servers)


def heard(channel, pieces, size, worker=1):
    """A push, as its header and its gradients."""
    said, gradients = torch.zeros(2 + pieces, dtype=torch.float64), torch.zeros(size)
    channel.pushes.recv(said, worker, "push")
    channel.pushes.recv(gradients, worker, "gradients")
    return said.tolist(), gradients.tolist()


def answer(channel, values, said=(-1, 7), worker=1):
    channel.answers.send(torch.tensor(said, dtype=torch.float64), worker, "answer")
    if values is not None:
        channel.answers.send(torch.tensor(values), worker, "parameters")


def test_one_push_and_its_answer(run_fast):
    def program(comm):
        mine, other = worker_or_channels(comm, 2)
        if comm.rank == 0:
            got = heard(other, 1, 4)
            answer(other, [1.0, 2.0, 3.0, 4.0], (-1, 5))
            return got
        if comm.rank == 1:
            got = heard(other, 1, 3)
            answer(other, [5.0, 6.0, 7.0], (-1, 9))
            return got
        other.pull()  # nothing was pushed: nothing comes
        mine[0].grad = torch.full((2, 2), 2.0)
        other.push(weight=3.0, last=True)
        with pytest.raises(
            ValueError, match="worker 0 pushes before it has pulled 2 servers' answers"
        ):
            other.push()
        before = [p.detach().clone() for p in mine]
        other.pull()
        return [p.tolist() for p in before], [p.tolist() for p in mine], other.versions

    first, second, worker = run_fast(program, 3)
    assert first == ([1, 3, 1], [6.0] * 4) and second == ([1, 3, 0], [0.0] * 3)
    assert worker == ([[[0, 0], [0, 0]], [0, 0, 0]], [[[1, 2], [3, 4]], [5, 6, 7]], [5, 9])


def test_no_samples_are_zeros():
    def program(comm):
        mine, other = worker_or_channels(comm, 1)
        if comm.rank == 0:
            got = heard(other, 2, 7)
            answer(other, [0.0] * 7)
            return got
        for p in mine:
            p.grad = torch.full_like(p, torch.nan)
        other.push(weight=0)
        other.pull()

    assert World(2).run(program)[0] == ([0, 0, 1, 1], [0.0] * 7)


def test_workers_begin_with_different_servers():
    def program(comm):
        mine, other = worker_or_channels(comm, 2)
        if comm.rank < 2:
            for worker in (1, 2) if comm.rank == 0 else (2, 1):
                heard(other, 1, [4, 3][comm.rank], worker)
            for worker in (1, 2):
                answer(other, [0.0] * [4, 3][comm.rank], worker=worker)
            return
        for p in mine:
            p.grad = torch.zeros_like(p)
        other.push()
        other.pull()

    results = World(4, alpha=1.0, beta=1.0).run(program)
    assert [(m.src, m.dst) for m in results.trace if m.label == "push"] == [
        (2, 0),
        (3, 1),
        (2, 1),
        (3, 0),
    ]


def test_a_refusal_names_the_lost_rank():
    def program(comm):
        _, other = worker_or_channels(comm, 1)
        if comm.rank == 0:
            heard(other, 2, 7)
            return answer(other, None, (5, 0))
        other.push()
        with pytest.raises(
            PeerLost, match="rank 5 is lost: it is dead, and server 0 cannot go on without it"
        ):
            other.pull()
        raise KeyError("as it should")  # or it would wait for parameters that never come

    with pytest.raises(KeyError, match="as it should"):
        World(2).run(program)
