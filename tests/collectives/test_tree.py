"""What binomial trees send, and who to whom."""

from math import ceil, floor, log2

import pytest
import torch

from minidist.collectives import gather
from minidist.comm import World
from tests.collectives.costs import ALPHA, BETA, SOME, run, sent

N = 840 * 8


def below(v, n):
    """Ranks from v on downwards: those that have v's bits above its lowest one."""
    return n if v == 0 else len([w for w in range(v, n) if w // (v & -v) == v // (v & -v)])


@pytest.mark.parametrize("n", SOME)
def test_broadcast(n):
    world = run(n, "broadcast", "tree", N)
    assert sorted((m.src, m.dst) for m in world.trace) == sorted(
        (v & (v - 1), v) for v in range(1, n)
    )
    assert all(m.nbytes == N for m in world.trace)
    assert world.time == pytest.approx(floor(log2(n)) * ALPHA + ceil(log2(n)) * N * BETA, rel=1e-12)


@pytest.mark.parametrize("n", SOME)
def test_reduce(n):
    world = run(n, "reduce", "tree", N)
    assert sent(world) == [(0, 0)] + [(1, N)] * (n - 1)
    assert world.time == pytest.approx(ceil(log2(n)) * (ALPHA + N * BETA), rel=1e-12)


@pytest.mark.parametrize("n", SOME)
def test_all_reduce(n):
    up_and_down = [((v > 0) + len([w for w in range(1, n) if w & (w - 1) == v])) for v in range(n)]
    assert sent(run(n, "all_reduce", "tree", N)) == [(count, count * N) for count in up_and_down]


@pytest.mark.parametrize("n", SOME)
def test_gather_and_scatter(n):
    whole = N * n
    up = run(n, "gather", "tree", whole)
    assert sent(up) == [(0, 0)] + [(1, below(v, n) * N) for v in range(1, n)]
    assert up.time == pytest.approx(ceil(log2(n)) * ALPHA + (n - 1) * N * BETA, rel=1e-12)
    down = run(n, "scatter", "tree", whole)
    assert sorted((m.src, m.dst, m.nbytes) for m in down.trace) == sorted(
        (m.dst, m.src, m.nbytes) for m in up.trace
    )
    assert down.time == pytest.approx(floor(log2(n)) * ALPHA + (n - 1) * N * BETA, rel=1e-12)


@pytest.mark.parametrize("n", [2, 5, 8])
def test_a_subtree_that_goes_around_is_two_messages(n):
    world = World(n)
    world.run(lambda comm: gather(comm, torch.ones(1), root=n - 1, algorithm="tree"))
    assert n - 1 <= len(world.trace) <= n - 1 + ceil(log2(n))
    assert world.trace.bytes_sent() == 4 * sum(below(v, n) for v in range(1, n))


@pytest.mark.parametrize("n", SOME)
def test_barrier(n):
    world = run(n, "barrier", "tree", 1)
    assert len(world.trace) == 2 * (n - 1)
