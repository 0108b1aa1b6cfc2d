"""What formulas know of a network."""

import pytest

from minidist.collectives.links import Net, Uniform, slowest, worst
from minidist.comm import World
from minidist.comm.base import Link

FAST, SLOW = Link(1e-6, 1e-11), Link(1e-5, 1e-10)


def two_nodes(n=4):
    """Ranks 0 and 1 on one node, the others on another; `asked` collects what was asked for."""
    asked = []

    def link(dst, src):
        asked.append((dst, src))
        return FAST if (dst < 2) == (src < 2) else SLOW

    return Net(n, link), asked


def test_ring_and_star():
    net, _ = two_nodes()
    assert set(net.ring) == {FAST, SLOW} and net.star == [FAST, SLOW, SLOW] and net.far == SLOW
    assert net.apart(2) == [SLOW]
    assert Net(1, None).ring == Net(1, None).star == []


def test_nothing_is_asked_twice():
    net, asked = two_nodes()
    for _ in range(3):
        assert net.ring and net.star and net.apart(2) and net.far
    # the ring's 0 → 1 is the star's, and 0 → 2
    assert len(asked) == len(set(asked)) == 4 + 3 + 3 - 1


def test_a_part():
    net, _ = two_nodes()
    part = net.part("both", [1, 3])
    assert part.n == 2 and part.ring == [SLOW] and net.part("both", [1, 3]) is part
    assert net.part("one", [2, 3]).ring == [FAST]


def test_uniform():
    net = Uniform(5, 1e-6, 1e-9)
    assert net.ring == [net.far] == [Link(1e-6, 1e-9)] and len(net.star) == 4
    assert net.part("any", [0, 3]).n == 2 and net.part("any", [0, 3, 4]).n == 3


def test_slowest_and_worst():
    assert slowest([FAST, SLOW], 1000) == 1e-5 + 1e-7 and worst([FAST, SLOW], 1000) is SLOW
    assert worst([Link(1, 0), Link(0, 1)], 2) == (0, 1) and worst(
        [Link(1, 0), Link(0, 1)], 0.5
    ) == (1, 0)
    assert slowest([], 1000) == 0


def test_of_a_comm():
    world = World(3, alpha=2e-6, beta=3e-9)
    assert (
        world.run(lambda comm: (Net.of(comm) is Net.of(comm), Net.of(comm).ring))
        == [(True, [Link(2e-6, 3e-9)])] * 3
    )


def test_nobody():
    with pytest.raises(ValueError, match="not 0"):
        Net(0, None)
