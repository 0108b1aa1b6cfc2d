"""Who may go on, and the bound on staleness that follows."""

import random

import pytest

from minidist.parallel.server import Clocks, most_stale
from tests.largest import largest


def test_bounds():
    clocks = Clocks(range(3), bound=1)
    assert [clocks.may_go(w) for w in range(3)] == [True] * 3
    assert [clocks.tick(0), clocks.tick(0)] == [1, 2]
    assert clocks.ahead(0) == 2 and not clocks.may_go(0) and clocks.may_go(1)
    clocks.tick(1)
    assert not clocks.may_go(0)  # worker 2 is still at 0
    clocks.stop(2)
    clocks.stop(2)  # told twice is told once
    assert clocks.may_go(0) and clocks.steps == {0: 2, 1: 1}


def test_without_a_bound_all_may_go():
    clocks = Clocks(range(2))
    for _ in range(100):
        clocks.tick(0)
    assert clocks.may_go(0) and clocks.ahead(0) == 100


def test_refused():
    with pytest.raises(ValueError, match="at least 0 steps apart: the bound is not -1"):
        Clocks(range(2), -1)


def staleness(n, bound, choose, pushes=200):
    """Of each push, where choose(who has parameters) says whose comes next: all that a server sees."""
    clocks = Clocks(range(n), bound)
    has = {}  # who computes, with which version
    for version in range(pushes):
        has |= {w: version for w in range(n) if w not in has and clocks.may_go(w)}
        worker = choose(sorted(has))
        yield version - has.pop(worker)
        clocks.tick(worker)


def by_speed(n, seed):
    """Choose at random, some workers more often than others."""
    chance = random.Random(seed)
    speeds = [chance.choice([1, 1, 30]) for _ in range(n)]
    return lambda has: chance.choices(has, [speeds[w] for w in has])[0]


@pytest.mark.parametrize(("n", "bound"), [(1, 0), (2, 0), (2, 1), (3, 0), (3, 2), (4, 1)])
def test_most_stale_is_reached_and_never_passed(n, bound):
    for seed in range(20):
        assert largest(staleness(n, bound, by_speed(n, seed))) <= most_stale(n, bound)
    first = iter([0] * bound)  # worker 0 runs ahead, then it is as slow as can be
    assert max(staleness(n, bound, lambda has: next(first, has[-1]))) == most_stale(n, bound)
