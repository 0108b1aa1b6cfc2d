"""What the naive algorithms cost: everything passes over one desk."""

import pytest
import torch

from minidist.collectives import (
    all_gather,
    all_reduce_,
    all_to_all,
    barrier,
    broadcast_,
    gather,
    reduce_,
    reduce_scatter,
    scatter,
)
from minidist.comm import World

ALPHA = 3e-6
BETA = 2e-9
N = 840 * 8


def run(n, verb, **kwargs):
    """[(messages, bytes) of each rank], virtual seconds."""
    world, x = (
        World(n, alpha=ALPHA, beta=BETA, device="meta"),
        torch.empty(840, dtype=torch.float64, device="meta"),
    )
    world.run(lambda comm: verb(comm, x, algorithm="naive", **kwargs))
    return [(world.trace.messages(r), world.trace.bytes_sent(r)) for r in range(n)], world.time


@pytest.fixture(params=[1, 2, 3, 4, 5, 8])
def n(request):
    return request.param


def test_broadcast(n):
    sent, time = run(n, broadcast_)
    assert sent == [(n - 1, (n - 1) * N)] + [(0, 0)] * (n - 1)
    assert time == pytest.approx((n > 1) * ALPHA + (n - 1) * N * BETA)


def test_reduce(n):
    sent, time = run(n, reduce_, root=n - 1)
    assert sent == [(1, N)] * (n - 1) + [(0, 0)]
    assert time == pytest.approx((n - 1) * (ALPHA + N * BETA))


def test_all_reduce(n):
    sent, time = run(n, all_reduce_)
    assert sent == [(n - 1, (n - 1) * N)] + [(1, N)] * (n - 1)
    assert time == pytest.approx((n > 1) * n * ALPHA + 2 * (n - 1) * N * BETA)


def test_gather(n):
    sent, time = run(n, gather)
    assert sent == [(0, 0)] + [(1, N)] * (n - 1)
    assert time == pytest.approx((n > 1) * ALPHA + (n - 1) * N * BETA)


def test_scatter(n):
    def program(comm):
        x = torch.empty(840, dtype=torch.float64, device="meta") if comm.rank == 0 else None
        out = torch.empty(840 // n, dtype=torch.float64, device="meta")
        scatter(comm, x, out=out)
        before = comm.now()
        scatter(comm, x)
        return before

    world = World(n, alpha=ALPHA, beta=BETA, device="meta")
    times = world.run(program)
    assert max(times) == pytest.approx((n > 1) * ALPHA + (n - 1) / n * N * BETA)
    # the second time the shapes travel as well
    assert [world.trace.messages(r) for r in range(n)] == [4 * (n - 1)] + [0] * (n - 1)
    words = world.trace.bytes_sent(0) - 2 * (n - 1) * N // n
    assert 0 <= words <= 100 * (n - 1)


def test_everyone_to_everyone(n):
    for verb, nbytes in ((all_gather, N), (reduce_scatter, N // n), (all_to_all, N // n)):
        sent, time = run(n, verb)
        assert sent == [(n - 1, (n - 1) * nbytes)] * n
        # all wires are busy all the time, since everyone begins with another one
        assert time == pytest.approx((n > 1) * ALPHA + (n - 1) * nbytes * BETA, rel=1e-12)


def test_barrier(n):
    world = World(n, alpha=ALPHA, beta=0)
    world.run(lambda comm: barrier(comm, algorithm="naive"))
    assert [world.trace.messages(r) for r in range(n)] == [n - 1] + [1] * (n - 1)
    assert world.time == pytest.approx((n > 1) * 2 * ALPHA)
