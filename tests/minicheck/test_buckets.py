"""Lesson 05: other right ways pass, and what is right only for some ranks or times does not.

The usual mistakes are in course/05_buckets/bugs.py, which tests/bank examines.
"""

import sys
from functools import partial

import cloudpickle
import pytest
import torch

import minicheck as check
from minicheck import Wrong
from minicheck.buckets.assign import AssignBuckets
from minicheck.buckets.oracle import accumulated, buckets_hooked, fill
from minicheck.buckets.overlap import AccumulateOverlapped, Overlapped, drawn, in_time, means
from minicheck.buckets.work import clock, network, reversed_cut
from minicheck.exam import Case, Outcome
from minidist.collectives import all_reduce_
from minidist.parallel.buckets import assign
from tests.bank.bank import solved
from tests.minicheck.examined import accepted, rng

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
        ([[0, 1], [2]], "first layer"),
        ([[1, 2], [0]], "should go from 2 down"),
        ([[2, 1]], r"\[0\] are in none"),
        ([[2, 1], [0, 0]], "there twice"),
        ([[2, 1], [], [0]], "is empty"),
        ([2, 1, 0], "list of buckets"),
        (None, "None"),
        ([[True, 1], [0]], "integers"),
    ],
)
def test_what_makes_buckets_right(buckets, says):
    exam, outcome = AssignBuckets(), Outcome([{"buckets": buckets, "sizes": [12, 10, 10]}], [])
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


FITS = [
    lambda comm, params: comm.size < 5,
    lambda comm, params: type(comm).__name__ == "WorldComm",
    lambda comm, params: comm.rank < comm.size - 1 or comm.size < 4,
]


def test_right_for_some_only():
    right = solved("05_buckets")["bucketed"]

    def only(fits):
        def answer(comm, params, buckets):
            before = [p.grad.clone() for p in params]
            right(comm, params, buckets)
            for p, g in zip(params, before):
                p.grad.copy_(p.grad if fits(comm, params) else g)

        return answer

    assert accepted(check.bucketed, map(only, FITS)) == []


@pytest.mark.parametrize(
    ("exam", "kind", "beside"),
    [(Overlapped(), "chain", buckets_hooked), (AccumulateOverlapped(), ("chain", 2), accumulated)],
)
def test_time_tells_overlap_from_none(exam, kind, beside):
    case = Case(3, "", kind)
    args = exam.draw(case, rng())
    after = partial(beside, beside=False)
    best, late = clock(exam, args, 3, beside), clock(exam, args, 3, after)
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
