"""Rings in halves and chains in pieces: messages, bytes, and the latency that is hidden."""

import pytest

from minidist.collectives.links import pieces
from minidist.comm.base import Link
from tests.collectives.costs import ALPHA, BETA, run, sent

N = 64 * 840 * 8
SIZES = [1, 2, 3, 4, 5, 8]


@pytest.mark.parametrize("n", SIZES)
def test_the_ring_sends_what_a_ring_sends_in_two_pieces_each(n):
    for verb, halves in (("reduce_scatter", 1), ("all_gather", 1), ("all_reduce", 2)):
        world, ring = run(n, verb, "pipelined", N), run(n, verb, "ring", N)
        assert sent(world) == [(2 * halves * (n - 1), halves * (n - 1) * N // n)] * n
        assert [nbytes for _, nbytes in sent(world)] == [nbytes for _, nbytes in sent(ring)]
        if n > 1:  # a piece is longer on the wire than α: all but one α is hidden
            assert N / n / 2 * BETA > ALPHA
            assert world.time == pytest.approx(halves * (n - 1) / n * N * BETA + ALPHA, rel=1e-12)
            assert ring.time == pytest.approx(
                world.time + (halves * (n - 1) - 1) * ALPHA, rel=1e-12
            )


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 13])
@pytest.mark.parametrize("verb", ["broadcast", "reduce"])
def test_a_chain(n, verb):
    """Each of k pieces passes each link of the chain once."""
    world = run(n, verb, "pipelined", N)
    k = pieces(n - 1 if verb == "broadcast" else n, N, Link(ALPHA, BETA))
    edges = {(r, r + 1) if verb == "broadcast" else (r + 1, r) for r in range(n - 1)}
    assert {(m.src, m.dst) for m in world.trace} == edges and k > (n > 2)
    assert [world.trace.messages(link=edge) for edge in edges] == [k] * (n - 1)
    assert [world.trace.bytes_sent(link=edge) for edge in edges] == [N] * (n - 1)


def test_a_longer_chain_takes_hardly_longer():
    times = [run(n, "broadcast", "pipelined", 1 << 22, alpha=3e-5).time for n in (3, 16)]
    assert (1 << 22) * BETA < times[0] < times[1] < 1.12 * (1 << 22) * BETA
