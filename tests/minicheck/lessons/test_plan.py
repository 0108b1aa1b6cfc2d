"""Lesson 22: the oracles by hand, and other right ways.

The usual mistakes are in course/22_plan/bugs.py, which tests/bank examines.
"""

from math import log

import pytest

import minicheck as check
from minicheck.lessons.plan import predict_plan
from minicheck.oracles import plan as oracle


def test_stages_by_hand():
    """4 layers on 3 stages, H = V = 1, one rank of each kind: the fourth layer is stage 1's."""
    found = oracle.stage_bytes(1, 1, 1, 4, 3, 1, 1, 0, 1, 8)
    assert found == [
        13 * 18 + 1 * 3 * 34,
        24 * 18 + 2 * 2 * 34,
        13 * 18 + 1 * 1 * 34 + 6,
    ]


@pytest.mark.parametrize(
    ("window", "pairs"), [(None, 10), (1, 4), (2, 7), (3, 9), (4, 10), (9, 10)]
)
def test_pairs_by_hand(window, pairs):
    assert oracle.pairs(4, window) == pairs


def test_one_constant_by_hand():
    """Tables that want the factors 1 and 4 get 2 together: their own are half of it, or double."""
    tables = {"a": [(1.0, 1.0), (3.0, 3.0)], "b": [(1.0, 4.0)]}
    assert oracle.factor(list(tables.values())) == pytest.approx(2.0)
    assert oracle.errors(tables) == {
        "a": pytest.approx((1.0, 3.0)),
        "b": pytest.approx((0.5, 0.75)),
    }
    assert log(oracle.factor([tables["b"]])) == pytest.approx(log(4.0))


def test_a_search_that_is_stuck():
    """Two changes would help, each alone does not."""
    of = lambda chunks, zero, seconds: (
        dict(shape=(1, 1, 1), chunks=chunks, zero=zero, recompute="none", micro_batch=1)
        | {"seconds": seconds, "fits": True}
    )
    grids = [of(1, 0, 5.0), of(2, 0, 6.0), of(1, 1, 7.0), of(2, 1, 1.0)]
    assert oracle.improve(grids, 0) == ([], 0)
    assert oracle.improve(grids, 1) == ([("zero", 5.0)], 3)


def test_another_way_to_choose():
    def choose(estimates, capacity, error):
        rows = sorted((axes, s, name) for name, (n, s, axes) in estimates.items() if n <= capacity)
        if not rows:
            nbytes, name = min((n, name) for name, (n, _, _) in estimates.items())
            raise ValueError(f"{name}: {nbytes - capacity}")
        fastest = min(s for _, s, _ in rows)
        return [name for _, s, name in rows if s <= fastest * (1 + error)]

    check.choose(choose)


def test_whose_numbers():
    values, slips = predict_plan()
    wrong = predict_plan(inside=50, share=2)[0]
    assert values["step_seconds"] != wrong["step_seconds"] and all(slips.values())
    numbers = [*values.values()]
    check.predict_plan(*numbers)
    with pytest.raises(check.Wrong, match="48 GPUs"):
        check.predict_plan(*numbers[:-1], numbers[-1] / 48)
