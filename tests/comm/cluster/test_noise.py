"""Noise is a function of (seed, kind, rank, k), spread as promised."""

import math
import statistics

import pytest

from minidist.comm.cluster.noise import factor


def logs(sigma=1.0, seed=0, kind="message", rank=0, n=2000):
    return [math.log(factor(sigma, seed, kind, rank, k)) for k in range(n)]


def test_the_same_event_has_the_same_factor():
    assert factor(0.3, 7, "message", 2, 5) == factor(0.3, 7, "message", 2, 5)
    others = {
        factor(0.3, *event)
        for event in [
            (7, "message", 2, 5),
            (8, "message", 2, 5),
            (7, "operation", 2, 5),
            (7, "message", 3, 5),
            (7, "message", 2, 6),
        ]
    }
    assert len(others) == 5


@pytest.mark.parametrize("sigma", [0.05, 1.0])
def test_it_is_log_normal_with_median_one(sigma):
    xs = logs(sigma)
    assert abs(statistics.fmean(xs)) < 4 * sigma / math.sqrt(len(xs))
    assert abs(statistics.stdev(xs) / sigma - 1) < 0.07
    assert abs(sum(x > 0 for x in xs) / len(xs) - 0.5) < 0.05


def test_ranks_and_events_are_independent():
    """Neighbours in rank, event and seed are not correlated: |r| < 4/√n."""
    a = logs()
    for b in (logs(rank=1), logs(seed=1), logs(kind="operation"), a[1:] + a[:1]):
        assert abs(statistics.correlation(a, b)) < 4 / math.sqrt(len(a))


def test_the_kinds():
    with pytest.raises(ValueError, match="'message' or 'operation', not 'coffee'"):
        factor(1.0, 0, "coffee", 0, 0)
