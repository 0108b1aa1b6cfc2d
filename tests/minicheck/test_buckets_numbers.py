"""Lesson 05, numbers: times on the clock, batch norm of a batch in parts. Right ones pass, others do not."""

import sys

import cloudpickle
import pytest
import torch

import minicheck as check
from minicheck import Wrong
from minicheck.buckets.norm import SyncBackward, SyncStatistics
from minicheck.buckets.oracle import clock
from minicheck.buckets.seconds import PredictOverlap, StepSeconds, overlap_slips, slips_of
from minicheck.exam import Case, Outcome
from minidist.collectives import all_reduce_
from minidist.parallel.overlap import step_time
from tests.minicheck.examined import accepted

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel


@pytest.mark.parametrize("case", StepSeconds.cases)
def test_the_clock_agrees_with_the_library(case):
    [(nbytes, ready, n, alpha, beta)] = StepSeconds().draw(case, torch.Generator().manual_seed(1))
    gaps = [b - a for a, b in zip([0.0, *ready], ready)]
    want = step_time(nbytes, gaps, n, alpha, beta, 1, 1)
    assert clock(nbytes, ready, n, alpha, beta) == pytest.approx(want, rel=1e-6)
    assert not any(
        abs(slip - want) <= 0.01 * want for slip in slips_of(nbytes, ready, n, alpha, beta)
    )


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        (lambda right, ready: right, None),
        (lambda right, ready: 1.37 * right, "Too long"),
        (lambda right, ready: 0.9 * ready, "Backward alone"),
        (lambda right, ready: None, "None"),
    ],
)
def test_what_makes_a_time_right(seconds, says):
    exam = StepSeconds()
    args = exam.draw(exam.cases[0], torch.Generator().manual_seed(1))
    outcome = Outcome([seconds(clock(*args[0]), args[0][1][-1])], [])
    if says is None:
        return exam.judge(exam.cases[0], args, outcome)
    with pytest.raises(Wrong, match=says):
        exam.judge(exam.cases[0], args, outcome)


GIVEN = dict(n=16, tensors=160, nbytes=400e6, backward=40e-3, b=10, alpha=10e-6, beta=1 / 25e9)
RIGHT = {
    "saved": 4500,
    "bucket": 3.3e-3,
    "afterwards": 73e-3,
    "beside": 43.3e-3,
    "slow": 67e-3,
    "smallest": 12e6,
    "variance": 3.25,
}


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({}, None),
        ({"saved": 4520}, None),
        ({"saved": 150}, "all-reduces"),
        ({"saved": 300}, "still sent"),
        ({"bucket": 3e-3}, "latencies are missing"),
        ({"afterwards": 43.3e-3}, "all of them come after"),
        ({"beside": 40e-3}, "starts when backward ends"),
        ({"slow": 46.3e-3}, "queue"),
        ({"slow": 43.3e-3}, "half as fast"),
        ({"smallest": 3e6}, "bytes take time|Bytes are"),
        ({"smallest": 4e6}, "equally long"),
        ({"variance": 2}, "means differ"),
        ({"variance": None}, "not set yet"),
    ],
)
def test_predicted_numbers(numbers, says):
    values, slips = overlap_slips(**GIVEN)
    exam, outcome = PredictOverlap(list(values), values, slips, ""), Outcome([RIGHT | numbers], [])
    if says is None:
        return exam.judge(Case(1, ""), [()], outcome)
    with pytest.raises(Wrong, match=says):
        exam.judge(Case(1, ""), [()], outcome)


def test_all_slips_are_wrong_numbers():
    values, slips = overlap_slips(**GIVEN)
    assert values == pytest.approx(RIGHT)
    assert all(
        abs(slip - values[name]) > 0.01 * values[name]
        for name, some in slips.items()
        for slip in some
    )


def two_passes(comm, x):
    """Sums first, squares around the common mean afterwards."""
    sums = all_reduce_(comm, torch.cat([x.sum(0), x.new_tensor([len(x)])]))
    mean = sums[:-1] / sums[-1]
    return mean, all_reduce_(comm, (x - mean).square().sum(0)) / sums[-1], sums[-1]


def two_exchanges(comm, dy, xhat, scale, count):
    one, two = all_reduce_(comm, dy.sum(0)), all_reduce_(comm, (dy * xhat).sum(0))
    return (dy - (one + xhat * two) / count) * scale


def test_other_right_ways(capsys):
    check.sync_statistics(two_passes)
    check.sync_backward(two_exchanges)
    assert capsys.readouterr().out.count(": right.") == 2


FITS = [
    lambda comm, x: comm.size < 5,
    lambda comm, x: type(comm).__name__ == "WorldComm",
    lambda comm, x: len(x) != 1,
    lambda comm, x: comm.rank < 3,
]


def test_right_for_some_only():
    def statistics(fits):
        def answer(comm, x):
            mean, var, count = two_passes(comm, x)
            return mean, var if fits(comm, x) else var + 1e-3, count

        return answer

    def backward(fits):
        def answer(comm, dy, xhat, scale, count):
            dx = two_exchanges(comm, dy, xhat, scale, count)
            return dx if fits(comm, dy) else dx + 1e-6

        return answer

    assert accepted(check.sync_statistics, map(statistics, FITS)) == []
    assert accepted(check.sync_backward, map(backward, FITS)) == []


@pytest.mark.parametrize("far", [0, 1])
def test_statistics_that_lose_digits_are_found(far):
    exam, case = SyncStatistics(), Case(2, "", ((24, 24), far))
    args = exam.draw(case, torch.Generator().manual_seed(0))
    whole = torch.cat([x for (x,) in args])
    mean, count = whole.mean(0), len(whole)
    careless = whole.square().mean(0) - mean.square()
    result = lambda var: {"found": (mean, var, count), "x": None}
    good, bad = (
        [result(v) | {"x": x} for (x,) in args] for v in (whole.var(0, correction=0), careless)
    )
    exam.judge(case, args, Outcome(good, []))
    if not far:
        return exam.judge(case, args, Outcome(bad, []))
    with pytest.raises(Wrong, match="Center first"):
        exam.judge(case, args, Outcome(bad, []))


def test_backward_is_that_of_autograd():
    exam, case = SyncBackward(), Case(3, "", (5, 0, 7))
    args = exam.draw(case, torch.Generator().manual_seed(0))
    dys, normals = (torch.cat([a[i] for a in args]) for i in (0, 1))
    scale, count = args[0][2:]
    dx = scale * (dys - dys.sum(0) / count - normals * (dys * normals).sum(0) / count)
    results = [{"dx": part, "kept": [True] * 3} for part in dx.split((5, 0, 7))]
    exam.judge(case, args, Outcome(results, []))
    results[2]["kept"][1] = False
    with pytest.raises(Wrong, match="rank 2: xhat was changed"):
        exam.judge(case, args, Outcome(results, []))
