"""What binomial trees send, and who to whom."""

from math import ceil, floor, log2

import pytest

from tests.collectives.costs import ALPHA, BETA, SOME, run, sent

N = 840 * 8


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
def test_barrier(n):
    world = run(n, "barrier", "tree", 1)
    assert len(world.trace) == 2 * (n - 1)
