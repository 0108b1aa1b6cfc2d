"""What formulas know of a network."""

import pytest
import torch

from minidist.collectives import links
from minidist.collectives.links import Net, slowest, worst
from minidist.comm import World
from minidist.comm.base import Link, Recv, Send

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


def test_links_all_alike():
    net = Net(5, lambda dst, src: Link(1e-6, 1e-9))
    assert net.ring == [net.far] == [Link(1e-6, 1e-9)] and len(net.star) == 4
    assert net.part("any", [0, 3]).n == 2 and net.part("more", [0, 3, 4]).n == 3


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


# ------------------------------------------------------------
# The executor of pipelines, the number of pieces, and the formula of S steps.


def there(comm, count, length, numbers):
    """`count` messages of `length` bytes from rank 0 to rank 1, at steps `numbers(i)`; what was done, in order."""
    xs, seen = [torch.full((length,), i, dtype=torch.uint8) for i in range(count)], []
    into = [torch.empty(length, dtype=torch.uint8) for _ in xs]
    ops = [Send(x, 1) if comm.rank == 0 else Recv(y, 0) for x, y in zip(xs, into, strict=True)]

    def each():
        for i, op in enumerate(ops):
            seen.append(f"start {i}")
            yield numbers(i), [op], lambda i=i: seen.append(f"end {i}")

    links.run(comm, each())
    return seen, comm.now(), [int(y[0]) for y in into] if comm.rank else None


def test_two_are_under_way():
    (seen, _, _), (same, _, values) = World(2).run(there, 4, 100, lambda i: i)
    assert (
        seen
        == same
        == ["start 0", "start 1", "start 2", "end 0", "start 3", "end 1", "end 2", "end 3"]
    )
    assert values == [0, 1, 2, 3]


def test_numbers_may_be_missing():
    """A step two later waits, whatever lies between."""
    seen = World(2).run(there, 3, 100, lambda i: 2 * i)[0][0]
    assert seen == ["start 0", "start 1", "end 0", "start 2", "end 1", "end 2"]


@pytest.mark.parametrize(
    ("alpha", "beta"), [(0, 1e-9), (1e-7, 1e-9), (1e-6, 1e-9), (3e-6, 1e-9), (1e-6, 0)]
)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 20])
def test_seconds(count, alpha, beta):
    got = max(
        time for _, time, _ in World(2, alpha=alpha, beta=beta).run(there, count, 1000, lambda i: i)
    )
    assert got == pytest.approx(links.seconds(count, Link(alpha, beta), 1000), rel=1e-12)


def test_nothing_takes_no_time():
    assert links.seconds(0, Link(1, 1), 1) == 0


@pytest.mark.parametrize("nbytes", [1 << 16, 1 << 20, 1 << 24])
@pytest.mark.parametrize("hops", [2, 5, 15, 63])
@pytest.mark.parametrize("alpha", [1e-6, 5e-6, 5e-5])
def test_no_other_number_of_pieces_is_much_better(nbytes, hops, alpha):
    link = Link(alpha, 1 / 50e9)

    def time(k):
        return (hops - 1) * (link.alpha + nbytes / k * link.beta) + links.seconds(
            k, link, nbytes / k
        )

    most = -(-nbytes // links.LEAST)
    best = min(time(k) for k in range(1, min(most, 3000) + 1))
    assert time(links.pieces(hops, nbytes, link)) <= 1.03 * best


def test_pieces_at_the_ends():
    link = Link(5e-6, 1 / 50e9)
    assert links.pieces(1, 1 << 30, link) == 1  # one link: nothing to overlap
    assert links.pieces(9, 0, link) == links.pieces(9, links.LEAST, link) == 1
    assert links.pieces(9, 10 * links.LEAST, Link(0, 1e-9)) == 10
    assert links.pieces(9, 1 << 20, Link(1e-6, 0)) == 1
