"""Lesson 07: other right ways pass, and what is right only for some ranks or parts does not.

The usual mistakes are in course/07_whole_batch/bugs.py, which tests/bank examines.
"""

import sys

import cloudpickle
import pytest
import torch

import minicheck as check
from minicheck import Wrong
from minicheck.exam import Case, Outcome
from minicheck.lessons import whole_batch
from minicheck.lessons.whole_batch import (
    DIMS,
    ROWS,
    AccumulateCounted,
    SyncBackward,
    SyncStatistics,
    UpdateRunning,
    by_channel,
    counted_rows,
    predict_whole_batch,
    wide,
)
from minidist.collectives import all_gather, all_reduce_
from minidist.parallel.accumulate import momentum_for
from tests.bank.bank import solved
from tests.minicheck.examined import (
    accepted,
    assert_odd_answers_are_told,
    assert_wrong,
    refused,
    rng,
    said,
)
from tests.minicheck.predicted import judge, slips_are_wrong

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel


def gathers_counts(comm, module, samples):
    """Weights from an all-gather, multiplied into copies."""
    counts = all_gather(comm, torch.tensor([float(samples)], dtype=torch.float64))
    for p in module.parameters():
        if p.requires_grad:
            there = samples and p.grad is not None
            grad = p.grad * float(samples / counts.sum()) if there else torch.zeros_like(p)
            p.grad = all_reduce_(comm, grad)


def scales_at_the_end(comm, module, loss_fn, micro_batches):
    """Sums of losses, divided when all gradients are summed; the rows that count go in alone."""
    for p in module.parameters():
        p.grad = None
    own = 0
    for x, y, counts in micro_batches:
        rows = int(counts.sum())
        if rows:
            (loss_fn(module(x[counts]), y[counts]) * rows).backward()
        own += rows
    everyone = all_reduce_(comm, torch.tensor(own, dtype=torch.float64)).item()
    for p in module.parameters():
        if p.requires_grad:
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            p.grad = all_reduce_(comm, grad) / everyone


def two_passes(comm, x):
    """Sums first, squares around the common mean afterwards."""
    rows = x.movedim(1, -1).reshape(-1, x.shape[1])
    sums = all_reduce_(comm, torch.cat([rows.sum(0), rows.new_tensor([len(rows)])]))
    mean = sums[:-1] / sums[-1]
    return mean, all_reduce_(comm, (rows - mean).square().sum(0)) / sums[-1], sums[-1]


def gathered(comm, dy, xhat, scale, weight, count):
    """With weight in what comes back, and an all-gather."""
    dbias, dweight = torch.stack([dy, dy * xhat]).sum((1, 3, 4))
    weight, scale = weight.view(-1, 1, 1), scale.view(-1, 1, 1)
    sums = all_gather(comm, torch.cat([dbias, dweight])[None]).sum(0)
    one, two = weight * sums.view(2, 1, -1, 1, 1)
    return (dy * weight - (one + xhat * two) / count) * scale, dweight, dbias


def merged_in_pairs(running_mean, running_var, parts, momentum):
    """A tree: two parts become one, until one is left."""
    merged = [(mean, var * count, count) for mean, var, count in parts if count]
    while len(merged) > 1:
        (a, squares_a, m), (b, squares_b, k), *rest = merged
        mean = a + (b - a) * k / (m + k)
        squares = squares_a + squares_b + (b - a).square() * m * k / (m + k)
        merged = [*rest, (mean, squares, m + k)]
    mean, squares, count = merged[0]
    running_mean.lerp_(mean, momentum)
    running_var.lerp_(squares / (count - 1), momentum)


def test_other_right_ways(capsys):
    check.weighted_average_gradients(gathers_counts)
    check.accumulate_counted(scales_at_the_end)
    check.sync_statistics(two_passes)
    check.sync_backward(gathered)
    check.update_running(merged_in_pairs)
    assert capsys.readouterr().out.count(": right.") == 5


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
        def answer(comm, dy, xhat, scale, weight, count):
            dx, dweight, dbias = gathered(comm, dy, xhat, scale, weight, count)
            return dx if fits(comm, dy) else dx + 1e-6, dweight, dbias

        return answer

    def running(fits):
        def answer(running_mean, running_var, parts, momentum):
            merged_in_pairs(running_mean, running_var, parts, momentum)
            running_var += 0 if fits(parts) else 1e-3

        return answer

    of_parts = [lambda parts: len(parts) < 40, lambda parts: all(count for *_, count in parts)]
    assert accepted(check.sync_statistics, map(statistics, FITS)) == []
    assert accepted(check.sync_backward, map(backward, FITS)) == []
    assert accepted(check.update_running, map(running, of_parts)) == []


GRADIENT_FITS = [
    lambda comm, module: comm.rank < comm.size - 1 or comm.size < 4,
    lambda comm, module: comm.size < 5,
    lambda comm, module: type(comm).__name__ == "WorldComm",
    lambda comm, module: type(module).__name__ in ("Plain", "Routed"),
    lambda comm, module: comm.size % 2,
]


@pytest.mark.parametrize("name", ["weighted_average_gradients", "accumulate_counted"])
def test_gradients_right_for_some_only(name):
    right = solved("07_whole_batch")[name]

    def only(fits):
        def answer(comm, module, *rest):
            right(comm, module, *rest)
            for p in module.parameters():
                if p.grad is not None and not fits(comm, module):
                    p.grad *= 1.5

        return answer

    assert accepted(getattr(check, name), map(only, GRADIENT_FITS)) == []


@pytest.mark.parametrize("case", AccumulateCounted.cases)
def test_what_is_drawn_counts_as_it_says(case):
    args = AccumulateCounted().draw(case, rng())
    _, parts = case.given
    for (*_, micro_batches, _), sizes in zip(args, parts, strict=True):
        assert [(len(x), int(counted.sum())) for x, _, counted in micro_batches] == list(sizes)
        for _, y, counted in micro_batches:
            assert y[~counted].isnan().all()
    x, y = counted_rows(
        [micro for *_, micro_batches, _ in args for micro in micro_batches], torch.float64
    )
    assert len(x) == len(y) == sum(count for part in parts for _, count in part)
    assert bool(y.isnan().any()) == (case.given[0] == "nan")


def test_rows_are_uneven_somewhere_everywhere():
    """A rank without rows, a micro-batch without, and one whose rows all count; n from 1 to 5."""
    assert {len(parts) for _, parts in ROWS} == {1, 2, 3, 4, 5}
    of_ranks = [part for _, parts in ROWS for part in parts]
    sizes = [size for part in of_ranks for size in part]
    assert any(not part for part in of_ranks)
    assert any(count == 0 for _, count in sizes) and any(rows == count for rows, count in sizes)


@pytest.mark.parametrize("far", [0, 1])
def test_statistics_that_lose_digits_are_found(far):
    exam, case = SyncStatistics(), Case(2, "", ((24, 25), far))
    args = exam.draw(case, rng())
    whole = by_channel(torch.cat([x for (x,) in args]))
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
    args = exam.draw(case, rng())
    dys, normals = (torch.cat([a[i] for a in args]) for i in (0, 1))
    scale, weight, count = args[0][2:]
    means, products = dys.sum(DIMS) / count, (dys * normals).sum(DIMS) / count
    dx = wide(scale * weight) * (dys - wide(means) - normals * wide(products))
    results = [
        {"found": (x, (dy * xhat).sum(DIMS), dy.sum(DIMS)), "given": (dy, xhat, *rest)}
        for x, (dy, xhat, *rest) in zip(dx.split((5, 0, 7)), args, strict=True)
    ]
    exam.judge(case, args, Outcome(results, []))
    dy, xhat, *rest = args[2]
    results[2]["given"] = (dy, xhat + 1, *rest)
    with pytest.raises(Wrong, match="rank 2: xhat was changed"):
        exam.judge(case, args, Outcome(results, []))


def test_an_error_where_there_are_no_ranks_names_none():
    assert_wrong(
        "^update_running: [^:]*: your code raised", check.update_running, [lambda *args: 1 // 0]
    )


def test_an_adjusted_momentum_is_told():
    """What the lesson shows is another thing than the batch's own statistics."""

    def adjusted(running_mean, running_var, parts, momentum):
        move = momentum_for(momentum, len(parts))
        for mean, var, count in parts:
            running_mean += move * (mean - running_mean)
            running_var += move * (var * count / max(1, count - 1) - running_var)

    words = said(UpdateRunning(), adjusted, UpdateRunning.cases[0])
    assert "with an adjusted momentum" in words


GIVEN = dict(n=8, parameters=10_000_000, k=4, channels=256)
RIGHT = {
    "nbytes": 70e6,
    "share": 0.125,
    "token": 12,
    "variance": 3.25,
    "unbiased": 3.25 * 20 / 19,
    "statistics": 14_364,
    "left": 0.9**40,
    "momentum": momentum_for(0.1, 4),
}


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({}, None),
        ({"nbytes": 280e6}, "once, after the last"),
        ({"nbytes": 35e6}, "one half"),
        ({"share": 0.1}, "should have"),
        ({"token": 25}, "longest micro-batch"),
        ({"variance": 2}, "means differ"),
        ({"unbiased": 3.25}, "biased one"),
        ({"statistics": 28_728}, "half of an all-reduce"),
        ({"left": 0.9**10}, "4 updates"),
        ({"momentum": 0.025}, "not within 1 %"),
        ({"momentum": None}, "not set yet"),
    ],
)
def test_predicted_numbers(numbers, says):
    judge(predict_whole_batch(**GIVEN), RIGHT | numbers, says)


def test_all_slips_are_wrong_numbers():
    values, slips = predict_whole_batch(**GIVEN)
    assert values == pytest.approx(RIGHT)
    assert slips_are_wrong((values, slips))
    for n, k in ((5, 2), (10, 3), (16, 5)):
        assert slips_are_wrong(predict_whole_batch(n, 6_000_000, k, 512))


STYLES = [
    (
        "weighted_average_gradients",
        """
if p.grad is None or not samples:
    p.grad = torch.zeros_like(p)
""",
        """
if not samples or p.grad is None:
    p.grad = p.detach() * 0
""",
    ),
    (
        "accumulate_counted",
        "loss = loss_fn(module(x)[counts], y[counts])",
        """
outputs = module(x)
loss = loss_fn(outputs[counts], y[counts])
""",
    ),
    ("accumulate_counted", "if counts.any():", "if True:  # of no rows the gradient is zero"),
    ("sync_statistics", "return mean, var, int(count[0])", "return mean, var, count"),
    ("sync_statistics", "return mean, var, int(count[0])", "return mean, var, count[:1].long()"),
    ("sync_backward", "all_reduce_(comm, sums)", "comm.stream(all_reduce_, sums).wait()"),
    (
        "update_running",
        "running_mean += momentum * (mean - running_mean)",
        "running_mean.mul_(1 - momentum).add_(momentum * mean)",
    ),
    (
        "predict_whole_batch",
        "unbiased = variance * 20 / 19",
        """
from fractions import Fraction
unbiased = Fraction(13, 4) * Fraction(20, 19)
""",
    ),
]


def test_right_answers_in_other_styles():
    assert refused("07_whole_batch", STYLES) == {}


def test_whatever_comes_is_told_in_words():
    assert_odd_answers_are_told(whole_batch)
