"""A batch that grows with the tokens seen."""

import itertools

import pytest

from minidist.train.optim import batch_ramp, batches, ramp_steps


def test_gpt3():
    batch = batch_ramp(32_000, 3_200_000, 4e9)
    assert [batch(seen) for seen in (0, 1e9, 2e9, 4e9, 3e11)] == [
        32_000,
        824_000,
        1_616_000,
        3_200_000,
        3_200_000,
    ]


def test_multiples_never_shrink_nor_exceed():
    batch = batch_ramp(100, 1000, 5000, multiple=48)
    sizes = [batch(seen) for seen in range(0, 7000, 10)]
    assert (
        sizes == sorted(sizes)
        and sizes[0] == 96
        and sizes[-1] == 960
        and all(size % 48 == 0 for size in sizes)
    )


def test_no_ramp_at_all():
    assert [batch_ramp(10, 10, 0)(seen) for seen in (0, 5)] == [10, 10]
    assert batch_ramp(10, 20, 0)(0) == 20


def test_steps_add_up_and_go_on_from_where_they_were():
    batch = batch_ramp(32_000, 3_200_000, 4e9, multiple=2048)
    steps = list(batches(batch, 6e9))
    assert steps[0] == (0, 30_720) and all(
        a + b == c for (a, b), (c, _) in itertools.pairwise(steps)
    )
    assert steps[-1][0] < 6e9 <= sum(steps[-1])
    assert list(batches(batch, 6e9, seen=steps[1000][0])) == steps[1000:]
    assert list(batches(batch, 6e9, seen=6_000_000_000)) == []


@pytest.mark.parametrize(
    ("first", "last", "over"), [(32_000, 3_200_000, 4e9), (1_000, 2_000, 1e6), (500, 500, 1e5)]
)
def test_the_formula_counts_the_steps(first, last, over):
    """Steps of the ramp, by walking it: the formula grows within a step, so it is a little below."""
    walked = sum(1 for _ in batches(batch_ramp(first, last, over), over))
    assert ramp_steps(first, last, over) == pytest.approx(walked, rel=5e-3)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (dict(first=0), "batch of 0 does not grow"),
        (dict(first=10, last=5), "batch of 10 does not grow to 5"),
        (dict(first=10, multiple=16), "multiples of 16"),
        (dict(over=-1), "over -1 tokens"),
    ],
)
def test_mistakes(how, words):
    with pytest.raises(ValueError, match=words):
        batch_ramp(**how)
