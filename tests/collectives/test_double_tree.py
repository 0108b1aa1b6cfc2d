"""The two trees, their schedule, and what they send."""

from math import log2

import pytest

from minidist.collectives.double_tree import first_steps, trees
from minidist.collectives.links import WINDOW
from tests.collectives.costs import run, sent
from tests.largest import largest

EVERY = range(1, 130)


def depth(parents, rank):
    return 0 if parents[rank] < 0 else 1 + depth(parents, parents[rank])


@pytest.mark.parametrize("n", EVERY)
def test_trees(n):
    both = trees(n)
    for parents in both:
        assert len(parents) == n and parents.count(-1) == 1
        assert all(parents.count(r) <= 2 for r in range(n))  # binary
        # which also ends only if there is no circle
        assert largest(depth(parents, r) for r in range(n)) <= log2(n)
    assert not set(both[0]) & set(both[1]) - {-1}  # nobody has children in both


def test_the_trees_of_eight():
    assert trees(8) == ([1, 3, 1, 7, 5, 3, 5, -1], [-1, 2, 4, 2, 0, 6, 4, 6])


def test_a_tree_of_nobody():
    with pytest.raises(ValueError, match="not 0"):
        trees(0)


@pytest.mark.parametrize("rooted", [True, False])
@pytest.mark.parametrize("n", [*range(1, 34), 64, 129])
def test_the_schedule(n, rooted):
    first = first_steps(n, rooted)
    assert len(first) == 2 * (n - 1)  # each of the two trees has an edge for each rank but its root
    for side in (1, 2):  # nobody sends, and nobody receives, twice in steps of one parity
        taken = [(edge[side], step % 2) for edge, step in first.items()]
        assert len(taken) == len(set(taken))
    into = {(tree, child): step for (tree, _, child), step in first.items()}
    for (tree, parent, child), step in first.items():
        above = into.get((tree, parent))
        assert above is None or step >= above + WINDOW, (tree, parent, child)
    if rooted:
        assert [edge for edge in first if edge[2] == 0] == []
        assert largest(first.values(), default=0) <= 3 * (log2(max(n - 1, 1)) + 1)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 13, 16])
def test_what_is_sent(n):
    nbytes = 64 * 840 * 8
    reduced, told = (
        run(n, "reduce", "double_tree", nbytes),
        run(n, "broadcast", "double_tree", nbytes),
    )
    passed = sorted((m.src, m.dst, m.nbytes) for m in told.trace)
    assert passed == sorted((m.dst, m.src, m.nbytes) for m in reduced.trace)
    assert reduced.time == pytest.approx(told.time, rel=1e-9)
    first = first_steps(n, True)
    for rank, (messages, sent_bytes) in enumerate(sent(told)):
        edges = sum(edge[1] == rank for edge in first)  # pieces are alike, k of them over each edge
        assert sent_bytes == edges * nbytes // 2 and edges <= 2
        assert messages * (n - 1) * 2 == edges * len(told.trace)


@pytest.mark.parametrize("n", [3, 4, 8, 13])
def test_an_all_reduce_goes_up_and_down(n):
    nbytes = 64 * 840 * 8
    world = run(n, "all_reduce", "double_tree", nbytes)
    assert world.trace.bytes_sent() == 2 * (n - 1) * nbytes
    parents = trees(n)
    for rank, (_, sent_bytes) in enumerate(sent(world)):
        above = sum(tree[rank] >= 0 for tree in parents)
        assert sent_bytes == (above + sum(tree.count(rank) for tree in parents)) * nbytes // 2


def test_wires_are_full():
    """A long message takes little more than Nβ, although half of it goes to two children each time."""
    nbytes = 1 << 22
    for n in (7, 16, 33):
        world = run(n, "broadcast", "double_tree", nbytes, alpha=3e-5)
        assert nbytes * world.beta <= world.time <= 1.1 * nbytes * world.beta
