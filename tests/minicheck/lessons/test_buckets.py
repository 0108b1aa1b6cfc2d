"""Lesson 06: other right ways pass, and what is right only for some ranks or times does not.

The usual mistakes are in course/06_buckets/bugs.py, which tests/bank examines.
"""

import sys
from functools import partial

import cloudpickle
import pytest
import torch

import minicheck as check
from minicheck import Wrong
from minicheck.exam import Case, Outcome
from minicheck.lessons import buckets
from minicheck.lessons.buckets import (
    AccumulateOverlapped,
    AssignBuckets,
    Overlapped,
    StepSeconds,
    SyncBackward,
    SyncStatistics,
    drawn,
    in_time,
    means,
    network,
    predict_overlap,
    reversed_cut,
    slips_of,
)
from minicheck.oracles.buckets import accumulated, buckets_hooked, clock, fill
from minidist.collectives import all_gather, all_reduce_
from minidist.parallel.reducer import assign
from minidist.study.predict import bucketed_seconds
from tests.bank.bank import solved
from tests.minicheck.examined import accepted, assert_odd_answers_are_told, refused, rng
from tests.minicheck.predicted import judge, slips_are_wrong

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel


@pytest.mark.parametrize("seed", range(20))
def test_the_oracle_fills_as_the_library(seed):
    sizes = torch.randint(1, 100, (30,), generator=rng(seed)).tolist()
    room, first = torch.randint(1, 300, (2,), generator=rng(seed)).tolist()
    first = min(first, room)
    positions = assign(sizes[::-1], [0] * 30, room, first)
    assert fill(sizes, room, first) == [[29 - i for i in bucket] for bucket in positions]


@pytest.mark.parametrize(
    ("buckets", "says"),
    [
        ([[2, 1], [0]], None),
        ([[2], [1, 0]], "still fits"),
        ([[2, 1, 0]], "has room for 20"),
        ([[0, 1], [2]], "should go from 2 down"),
        ([[1, 2], [0]], "should go from 2 down"),
        ([[2, 1]], r"each of them once, and they are \[2, 1\]"),
        ([[2, 1], [0, 0]], r"\[2, 1, 0, 0\]"),
        ([[2, 1], [], [0]], "is empty"),
        ([2, 1, 0], "list of positions"),
        (None, "None"),
        ([[True, 1], [0]], "integers"),
    ],
)
def test_what_makes_buckets_right(buckets, says):
    exam, outcome = (
        AssignBuckets(),
        Outcome([{"found": buckets, "given": [[12, 10, 10], 20, 20]}], []),
    )
    if says is None:
        return exam.judge(Case(1, ""), [([12, 10, 10], 20, 20)], outcome)
    with pytest.raises(Wrong, match=says):
        exam.judge(Case(1, ""), [([12, 10, 10], 20, 20)], outcome)


def test_other_ways_to_pack(capsys):
    def into_a_buffer(comm, params, buckets):
        for bucket in buckets:
            some = [params[i] for i in bucket]
            flat = torch.zeros(sum(p.numel() for p in some), dtype=some[0].dtype)
            first = 0
            for p in some:
                view = flat[first : first + p.numel()].view_as(p)
                view.copy_(p.grad).div_(comm.size)
                p.grad, first = view, first + p.numel()
            all_reduce_(comm, flat)

    check.bucketed(into_a_buffer)
    assert "bucketed: right." in capsys.readouterr().out


def test_other_ways_to_overlap(capsys):
    def flat_on_a_lane(comm, params, buckets):
        arrived, works = set(), []

        def job(lane, some):
            flat = torch.cat([p.grad.reshape(-1) for p in some]) / lane.size
            all_reduce_(lane, flat)
            for p, piece in zip(some, flat.split([p.numel() for p in some])):
                p.grad = piece.view_as(p)

        def start():
            some = [params[i] for i in buckets[len(works)]]
            for p in some:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            works.append(comm.stream(job, some, lane=3))

        def hook(i, p):
            arrived.add(i)
            while len(works) < len(buckets) and arrived.issuperset(buckets[len(works)]):
                start()

        def finish():
            while len(works) < len(buckets):
                start()
            while works:
                works.pop(0).wait()
            arrived.clear()

        for i, p in enumerate(params):
            p.register_post_accumulate_grad_hook(partial(hook, i))
        return finish

    check.overlapped(flat_on_a_lane)
    assert "overlapped: right." in capsys.readouterr().out


def test_counting_all_arrivals_is_right_too(capsys):
    def counts_to_k(comm, params, backwards, buckets):
        missing, works = [len(b) * len(backwards) for b in buckets], []

        def hook(k, p):
            missing[k] -= 1
            while len(works) < len(buckets) and not missing[len(works)]:
                works.append(
                    comm.stream(all_reduce_, [params[i].grad for i in buckets[len(works)]], "mean")
                )

        handles = [
            params[i].register_post_accumulate_grad_hook(partial(hook, k))
            for k, bucket in enumerate(buckets)
            for i in bucket
        ]
        for backward in backwards:
            backward()
        for done in [*[w.wait for w in works], *[h.remove for h in handles]]:
            done()

    check.accumulate_overlapped(counts_to_k)
    assert "accumulate_overlapped: right." in capsys.readouterr().out


BUCKETS_FITS = [
    lambda comm, params: comm.size < 5,
    lambda comm, params: type(comm).__name__ == "WorldComm",
    lambda comm, params: comm.rank < comm.size - 1 or comm.size < 4,
]


def test_buckets_right_for_some_only():
    right = solved("06_buckets")["bucketed"]

    def only(fits):
        def answer(comm, params, buckets):
            before = [p.grad.clone() for p in params]
            right(comm, params, buckets)
            for p, g in zip(params, before):
                p.grad.copy_(p.grad if fits(comm, params) else g)

        return answer

    assert accepted(check.bucketed, map(only, BUCKETS_FITS)) == []


@pytest.mark.parametrize(
    ("exam", "kind", "beside"),
    [
        (Overlapped(), ("chain", 1), buckets_hooked),
        (AccumulateOverlapped(), ("chain", 2), accumulated),
    ],
)
def test_time_tells_overlap_from_none(exam, kind, beside):
    case = Case(3, "", kind)
    args = exam.draw(case, rng())
    after = partial(beside, beside=False)
    best, late = exam.seconds(args, beside), exam.seconds(args, after)
    assert best < 0.95 * late
    in_time(exam, case, args, Outcome([], [], best), beside, after, "")
    for time, says in (
        (late, "beside backward"),
        ((best + late) / 2, "as soon as it"),
        (best / 2, "clock set"),
    ):
        with pytest.raises(Wrong, match=says):
            in_time(exam, case, args, Outcome([], [], time), beside, after, "")


def test_what_makes_means_right():
    own = [[torch.ones(2, dtype=torch.float64) * r] for r in (1, 2, 6)]
    good = torch.full((2,), 3.0, dtype=torch.float64)
    means([[good], [good], [good]], own, lambda *_: None)
    for bad, says in (
        (good * 3, "3 times too large"),
        (own[1][0], "rank 1's own"),
        (None, "counts as zeros"),
        (good.float(), "dtype"),
        (good * torch.nan, "nan"),
        ((own[0][0] + own[1][0]) / 2, "0 and 1 only"),
        (good + 1e-12, "but for rounding"),
    ):
        with pytest.raises(Wrong, match=says):
            means([[good], [bad], [good]], own, lambda *_: None)


@pytest.mark.parametrize("kind", ["chain", "orders", "routed", "unused"])
def test_what_is_drawn(kind):
    model, buckets, orders = drawn(kind, 4, rng())
    assert sorted(i for b in buckets for i in b) == list(range(len(model.values)))
    grads = [model.gradient([torch.randn(3, 16, dtype=torch.float64)], order) for order in orders]
    idle = [i for i in range(len(model.values)) if not any(g[i].any() for g in grads)]
    assert bool(idle) == (kind == "unused")
    assert (kind == "routed") == any(
        g[i].any() and not h[i].any()
        for i in range(len(model.values))
        for g in grads
        for h in grads
    )
    assert (len({tuple(o) for o in orders}) > 1) == (kind in ("orders", "routed"))


def test_cuts():
    for cuts in (1, 2, 7):
        buckets = reversed_cut(7, cuts, rng())
        assert (
            len(buckets) == cuts
            and all(buckets)
            and [i for b in buckets for i in b] == [6, 5, 4, 3, 2, 1, 0]
        )
    assert len(network(2, 3, rng()).values) == 6


# ------------------------------------------------------------
# Times on the clock, and batch norm of a batch in parts: right ones pass, others do not.


@pytest.mark.parametrize("case", StepSeconds.cases)
def test_the_clock_agrees_with_the_library(case):
    [(nbytes, ready, n, alpha, beta)] = StepSeconds().draw(case, torch.Generator().manual_seed(1))
    gaps = [b - a for a, b in zip([0.0, *ready], ready)]
    want = bucketed_seconds(nbytes, gaps, n, alpha, beta, 1, 1)
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
    found = seconds(clock(*args[0]), args[0][1][-1])
    outcome = Outcome([{"found": found, "given": args[0]}], [])
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
    judge(predict_overlap(**GIVEN), RIGHT | numbers, says)


def test_all_slips_are_wrong_numbers():
    values, slips = predict_overlap(**GIVEN)
    assert values == pytest.approx(RIGHT)
    assert slips_are_wrong((values, slips))


def two_passes(comm, x):
    """Sums first, squares around the common mean afterwards."""
    sums = all_reduce_(comm, torch.cat([x.sum(0), x.new_tensor([len(x)])]))
    mean = sums[:-1] / sums[-1]
    return mean, all_reduce_(comm, (x - mean).square().sum(0)) / sums[-1], sums[-1]


def gathered(comm, dy, xhat, scale, count):
    sums = torch.cat([dy.sum(0), (dy * xhat).sum(0)])
    one, two = all_gather(comm, sums[None]).sum(0).view(2, -1)
    return (dy - (one + xhat * two) / count) * scale


def test_other_right_ways(capsys):
    check.sync_statistics(two_passes)
    check.sync_backward(gathered)
    assert capsys.readouterr().out.count(": right.") == 2


BUCKETS_NUMBERS_FITS = [
    lambda comm, x: comm.size < 5,
    lambda comm, x: type(comm).__name__ == "WorldComm",
    lambda comm, x: len(x) != 1,
    lambda comm, x: comm.rank < 3,
]


def test_buckets_numbers_right_for_some_only():
    def statistics(fits):
        def answer(comm, x):
            mean, var, count = two_passes(comm, x)
            return mean, var if fits(comm, x) else var + 1e-3, count

        return answer

    def backward(fits):
        def answer(comm, dy, xhat, scale, count):
            dx = gathered(comm, dy, xhat, scale, count)
            return dx if fits(comm, dy) else dx + 1e-6

        return answer

    assert accepted(check.sync_statistics, map(statistics, BUCKETS_NUMBERS_FITS)) == []
    assert accepted(check.sync_backward, map(backward, BUCKETS_NUMBERS_FITS)) == []


@pytest.mark.parametrize("far", [0, 1])
def test_statistics_that_lose_digits_are_found(far):
    exam, case = SyncStatistics(), Case(2, "", ((24, 24), far))
    args = exam.draw(case, torch.Generator().manual_seed(0))
    whole = torch.cat([x for (x,) in args])
    mean, count = whole.mean(0), len(whole)
    careless = whole.square().mean(0) - mean.square()
    good, bad = (
        [{"found": (mean, var, count), "given": given} for given in args]
        for var in (whole.var(0, correction=0), careless)
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
    parts = dx.split((5, 0, 7))
    results = [{"found": x, "given": given} for x, given in zip(parts, args, strict=True)]
    exam.judge(case, args, Outcome(results, []))
    dy, xhat, *rest = args[2]
    results[2]["given"] = (dy, xhat + 1, *rest)
    with pytest.raises(Wrong, match="rank 2: xhat was changed"):
        exam.judge(case, args, Outcome(results, []))


STYLES = [
    ("assign_buckets", "return buckets", "return [[torch.tensor(i) for i in x] for x in buckets]"),
    (
        "bucketed",
        "flat = torch.cat([p.grad.reshape(-1) for p in some])",
        """
flat = torch.empty(sum(p.numel() for p in some), dtype=some[0].dtype)
torch.cat([p.grad.flatten() for p in some], out=flat)
""",
    ),
    (
        "step_seconds",
        "return wire",
        """
from fractions import Fraction
return Fraction(wire)
""",
    ),
    ("sync_statistics", "return mean, var, int(count[0])", "return mean, var, count"),
    ("sync_statistics", "return mean, var, int(count[0])", "return mean, var, count[:1].long()"),
    ("sync_backward", "all_reduce_(comm, sums)", "comm.stream(all_reduce_, sums).wait()"),
    (
        "predict_overlap",
        "variance = 2 + (1.5**2 + 0.5**2 + 0.5**2 + 1.5**2) / 4",
        """
from fractions import Fraction
variance = 2 + Fraction(5, 4)
""",
    ),
]


def test_right_answers_in_other_styles():
    assert refused("06_buckets", STYLES) == {}


def test_whatever_comes_is_told_in_words():
    assert_odd_answers_are_told(buckets)
