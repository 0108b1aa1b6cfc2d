"""Lesson 06: other right ways pass, and what is right only for some ranks or times does not.

The usual mistakes are in course/06_buckets/bugs.py, which tests/bank examines.
"""

import sys
from functools import partial
from itertools import product

import cloudpickle
import pytest
import torch

import minicheck as check
from minicheck import Wrong
from minicheck.exam import Case, Outcome, first_near
from minicheck.lessons import buckets
from minicheck.lessons.buckets import (
    AccumulateOverlapped,
    AssignBuckets,
    Overlapped,
    StepSeconds,
    drawn,
    in_time,
    means,
    network,
    predict_overlap,
    reversed_cut,
    slips_of,
)
from minicheck.oracles.buckets import accumulated, buckets_hooked, clock, fill
from minidist.collectives import all_reduce_
from minidist.parallel.reducer import assign
from minidist.study.predict import bucketed_seconds
from tests.bank.bank import solved
from tests.minicheck.examined import (
    accepted,
    assert_odd_answers_are_told,
    assert_wrong,
    refused,
    rng,
)
from tests.minicheck.predicted import judge, slips_are_wrong

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel


@pytest.mark.parametrize("seed", range(20))
def test_the_oracle_fills_as_the_library(seed):
    sizes = torch.randint(1, 100, (30,), generator=rng(seed)).tolist()
    room, first = torch.randint(1, 300, (2,), generator=rng(seed)).tolist()
    first = min(first, room)
    dtypes = [f"float{kind}" for kind in torch.randint(0, 3, (30,), generator=rng(seed)).tolist()]
    positions = assign(sizes[::-1], dtypes[::-1], room, first)
    assert fill(sizes, dtypes, room, first) == [[29 - i for i in bucket] for bucket in positions]


@pytest.mark.parametrize(
    ("buckets", "says"),
    [
        ([[2, 1], [0]], None),
        ([[2], [1, 0]], "still fits"),
        ([[2, 1, 0]], "has room for 20"),
        ([[0, 1], [2]], "should go down"),
        ([[1, 2], [0]], "should go down"),
        ([[0], [2, 1]], "complete first"),
        ([[2, 1]], r"in one bucket, once, and yours are \[2, 1\]"),
        ([[2, 1], [0, 0]], r"\[2, 1, 0, 0\]"),
        ([[2, 1], [], [0]], "is empty"),
        ([2, 1, 0], "list of positions"),
        (None, "None"),
        ([[True, 1], [0]], "integers"),
    ],
)
def test_what_makes_buckets_right(buckets, says):
    exam = AssignBuckets()
    given = [12, 10, 10], ["float32"] * 3, 20, 20
    outcome = Outcome([{"found": buckets, "given": given}], [])
    if says is None:
        return exam.judge(Case(1, ""), [given], outcome)
    with pytest.raises(Wrong, match=says):
        exam.judge(Case(1, ""), [given], outcome)


@pytest.mark.parametrize(
    ("buckets", "says"),
    [
        ([[3, 1], [2, 0]], None),
        ([[2, 0], [3, 1]], "complete first"),
        ([[3, 2, 1, 0]], "one flat tensor has one dtype"),
        ([[3], [2], [1], [0]], "still fits"),
        ([[3, 1], [2], [0]], "of bfloat16, of 10 bytes, still fits"),
    ],
)
def test_buckets_of_two_dtypes(buckets, says):
    given = [10] * 4, ["bfloat16", "float32"] * 2, 20, 20
    outcome = Outcome([{"found": buckets, "given": given}], [])
    if says is None:
        return AssignBuckets().judge(Case(1, ""), [given], outcome)
    with pytest.raises(Wrong, match=says):
        AssignBuckets().judge(Case(1, ""), [given], outcome)


def test_other_ways_to_pack(capsys):
    def into_a_buffer(comm, params, buckets, align):
        for bucket in buckets:
            some = [params[i] for i in bucket]
            rooms = [-(-p.numel() // align) * align for p in some]
            flat = torch.zeros(sum(rooms), dtype=some[0].dtype)
            first = 0
            for p, room in zip(some, rooms):
                view = flat[first : first + p.numel()].view_as(p)
                view.copy_(p.grad).div_(comm.size)
                p.grad, first = view, first + room
            all_reduce_(comm, flat)

    check.bucketed(into_a_buffer)
    assert "bucketed: right." in capsys.readouterr().out


def test_other_ways_to_overlap(capsys):
    def flat_on_a_lane(comm, params, buckets, most):
        arrived, works = set(), []
        waited = []

        def job(lane, some):
            flat = torch.cat([p.grad.reshape(-1) for p in some]) / lane.size
            all_reduce_(lane, flat)
            for p, piece in zip(some, flat.split([p.numel() for p in some])):
                p.grad = piece.view_as(p)

        def start():
            while len(works) - len(waited) >= most:
                works[len(waited)].wait()
                waited.append(True)
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
            waited.clear()

        for i, p in enumerate(params):
            p.register_post_accumulate_grad_hook(partial(hook, i))
        return finish

    check.overlapped(flat_on_a_lane)
    assert "overlapped: right." in capsys.readouterr().out


def test_a_set_of_what_was_reached_is_right_too(capsys):
    def in_pieces(comm, params, backwards, buckets):
        for backward in backwards[:-1]:
            backward()
        started = []

        def start():
            own = [params[i] for i in buckets[len(started)]]
            for p in own:
                p.grad = p.grad if p.grad is not None else p.detach() * 0
            started.append(comm.stream(all_reduce_, [p.grad for p in own], "mean"))

        reached = set()

        def hook(i, p):
            reached.add(i)
            while len(started) < len(buckets) and reached.issuperset(buckets[len(started)]):
                start()

        handles = [
            p.register_post_accumulate_grad_hook(partial(hook, i)) for i, p in enumerate(params)
        ]
        backwards[-1]()
        for _ in range(len(buckets) - len(started)):
            start()
        for done in [*[w.wait for w in started], *[h.remove for h in handles]]:
            done()

    check.accumulate_overlapped(in_pieces)
    assert "accumulate_overlapped: right." in capsys.readouterr().out


BUCKETS_FITS = [
    lambda comm, params: comm.size < 5,
    lambda comm, params: type(comm).__name__ == "WorldComm",
    lambda comm, params: comm.rank < comm.size - 1 or comm.size < 4,
]


def test_buckets_right_for_some_only():
    right = solved("06_buckets")["bucketed"]

    def only(fits):
        def answer(comm, params, buckets, align):
            before = [p.grad.clone() for p in params]
            right(comm, params, buckets, align)
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


@pytest.mark.parametrize("name", ["assign_buckets", "step_seconds"])
def test_an_error_where_there_are_no_ranks_names_none(name):
    assert_wrong(rf"^{name}: [^:]*: your code raised", getattr(check, name), [lambda *args: 1 // 0])


# ------------------------------------------------------------
# Times on the clock: right ones pass, others do not.


@pytest.mark.parametrize("case", StepSeconds.cases)
def test_the_clock_agrees_with_the_library(case):
    drawn_for = StepSeconds().draw(case, torch.Generator().manual_seed(1))
    [(nbytes, ready, n, alpha, beta, most)] = drawn_for
    gaps = [b - a for a, b in zip([0.0, *ready], ready)]
    want = bucketed_seconds(nbytes, gaps, n, alpha, beta, 1, 1)
    free = clock(nbytes, ready, n, alpha, beta, len(nbytes))
    assert free == pytest.approx(want, rel=1e-6)
    limited = clock(nbytes, ready, n, alpha, beta, most)
    assert limited == pytest.approx(solved("06_buckets")["step_seconds"](*drawn_for[0]), rel=1e-6)
    assert limited >= free * (1 - 1e-9)
    slips = slips_of(*drawn_for[0])
    assert not any(abs(slip - limited) <= 1e-4 * limited for slip in slips)


def test_a_limit_costs_time_in_some_cases():
    """Else nobody would see whether it is in the formula."""
    late = 0
    for case, seed in product(StepSeconds.cases, range(3)):
        [(*given, most)] = StepSeconds().draw(case, torch.Generator().manual_seed(seed))
        solution = solved("06_buckets")["step_seconds"]
        late += solution(*given, most) > 1.01 * solution(*given, len(given[0]))
    assert late >= 6


def test_a_formula_without_the_limit_is_told_so():
    """Where the wire never rests, that is also the first bucket's time and the sum of all: another slip's value."""
    solution = solved("06_buckets")["step_seconds"]
    for case, seed in product(StepSeconds.cases, range(3)):
        [(*given, most)] = StepSeconds().draw(case, torch.Generator().manual_seed(seed))
        free = solution(*given, len(given[0]))
        if solution(*given, most) > 1.001 * free:
            assert "without a limit" in first_near(free, slips_of(*given, most), 1e-4)


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
        ({"smallest": None}, "not set yet"),
    ],
)
def test_predicted_numbers(numbers, says):
    judge(predict_overlap(**GIVEN), RIGHT | numbers, says)


def test_all_slips_are_wrong_numbers():
    values, slips = predict_overlap(**GIVEN)
    assert values == pytest.approx(RIGHT)
    assert slips_are_wrong((values, slips))


STYLES = [
    (
        "assign_buckets",
        "return sorted(buckets, key=lambda bucket: -bucket[-1])",
        "return [[torch.tensor(i) for i in x] for x in sorted(buckets, key=min, reverse=True)]",
    ),
    (
        "bucketed",
        "flat = torch.cat(padded)",
        """
flat = torch.empty(sum(len(x) for x in padded), dtype=some[0].dtype)
torch.cat(padded, out=flat)
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
    (
        "predict_overlap",
        "saved = 2 * (n - 1) * (160 - b)",
        """
from fractions import Fraction
saved = Fraction(2 * (n - 1) * (160 - b))
""",
    ),
]


def test_right_answers_in_other_styles():
    assert refused("06_buckets", STYLES) == {}


def test_whatever_comes_is_told_in_words():
    assert_odd_answers_are_told(buckets)
