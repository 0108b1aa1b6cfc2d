"""What halving and doubling sends: a ring's bytes in a tree's steps for powers of two; else what folding adds."""

import pytest

from tests.collectives.costs import ALPHA, BETA, SOME, run, sent
from tests.largest import largest

N = 8 * 32 * 9 * 5 * 7 * 11 * 13 * 17 * 23


def folded(n):
    """(p, r): the power of two that act, the pairs."""
    p = 1 << (n.bit_length() - 1)
    return p, n - p


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16, 32])
def test_powers_of_two(n):
    steps = n.bit_length() - 1
    halves = (
        run(n, "reduce_scatter", "halving_doubling", N),
        run(n, "all_gather", "halving_doubling", N),
    )
    for world in halves:
        assert sent(world) == [(steps, (n - 1) * N // n)] * n
        assert world.time == pytest.approx(steps * ALPHA + (n - 1) / n * N * BETA, rel=1e-12)
    world = run(n, "all_reduce", "halving_doubling", N)
    assert sent(world) == [(2 * steps, 2 * (n - 1) * N // n)] * n
    assert world.time == pytest.approx(sum(half.time for half in halves), rel=1e-12)


@pytest.mark.parametrize("n", [n for n in SOME if n & (n - 1)])
def test_others_fold_first_and_unfold_last(n):
    p, r = folded(n)
    world, steps = run(n, "all_reduce", "halving_doubling", N), p.bit_length() - 1
    acting = (2 * steps, 2 * (p - 1) * N // p)
    for rank, (messages, nbytes) in enumerate(sent(world)):
        if rank >= 2 * r:
            assert (messages, nbytes) == acting
        elif rank % 2:
            assert (messages, nbytes) == (1, N)  # all it has, to its partner
        else:
            assert (messages, nbytes) == (acting[0] + 1, acting[1] + N)  # and the result back
    assert sorted((m.src, m.dst) for m in world.trace if m.label == "fold") == [
        (2 * i + 1, 2 * i) for i in range(r)
    ]
    assert sorted((m.src, m.dst) for m in world.trace if m.label == "unfold") == [
        (2 * i, 2 * i + 1) for i in range(r)
    ]
    extra = 2 * (ALPHA + N * BETA)
    assert world.time == pytest.approx(
        extra + 2 * steps * ALPHA + 2 * (p - 1) / p * N * BETA, rel=1e-12
    )


@pytest.mark.parametrize("n", [3, 5, 6, 7, 12, 13])
def test_the_halves_of_others(n):
    (_, r), chunk = folded(n), N // n
    for verb, first, last in (("reduce_scatter", N, chunk), ("all_gather", chunk, N)):
        world = run(n, verb, "halving_doubling", N)
        for label, nbytes in (("fold", first), ("unfold", last)):
            assert [m.nbytes for m in world.trace if m.label == label] == [nbytes] * r
        inner = [m for m in world.trace if m.label not in ("fold", "unfold")]
        assert all(
            m.src % 2 == 0 and m.dst % 2 == 0 for m in inner if largest(m.src, m.dst) < 2 * r
        )


def test_partners_come_nearer():
    world = run(8, "reduce_scatter", "halving_doubling", 8 * 64)
    assert [(m.dst, m.nbytes) for m in world.trace if m.src == 5] == [(1, 256), (7, 128), (4, 64)]
