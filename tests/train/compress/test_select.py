"""The k largest: exactly, and about k of them by a threshold."""

import pytest
import torch

from minidist.train.compress.select import FAR_MORE, exact, sampled, wanted


def numbers(length, seed=0):
    return torch.randn(length, generator=torch.Generator().manual_seed(seed)).abs()


@pytest.mark.parametrize(
    ("length", "sparsity", "k"),
    [
        (1000, 0.999, 1),
        (1_000_000, 0.999, 1000),
        (10, 0.999, 1),
        (64, 0.75, 16),
        (5, 0.0, 5),
    ],
)
def test_how_many(length, sparsity, k):
    assert wanted(length, sparsity) == k


def test_exact():
    x = numbers(1000)
    chosen = exact(x, 37)
    rest = torch.ones(1000, dtype=torch.bool)
    rest[chosen] = False
    assert len(chosen.unique()) == 37 and x[chosen].min() >= x[rest].max()


@pytest.mark.parametrize(
    ("length", "k", "share"), [(20_000, 200, 0.1), (20_000, 20, 0.01), (300, 3, 0.01)]
)
def test_sampled_are_the_largest_and_not_far_more_than_k(length, k, share):
    x, counts = numbers(length), []
    for seed in range(30):
        chosen = sampled(x, k, share, seed)
        rest = torch.ones(length, dtype=torch.bool)
        rest[chosen] = False
        assert len(chosen.unique()) == len(chosen) <= FAR_MORE * k
        assert not len(chosen) or x[chosen].min() >= x[rest].max()
        counts.append(len(chosen))
    assert len(set(counts)) > 1
    if k == 200:  # 20 of the sample decide
        assert 0.7 * k < sum(counts) / 30 < 1.3 * k


def test_far_too_many_are_chosen_again():
    """A sample that misses the few large numbers: the threshold is too low, and exactly k of those above it go."""
    x = torch.full((10_000,), 0.1)
    x[::1000] = torch.arange(1.0, 11)
    assert sorted(x[sampled(x, 10, 0.001, 0)].tolist()) == list(range(1, 11))
    assert len(sampled(torch.zeros(10_000), 10, 0.01, 0)) == 10


def test_the_whole_as_a_sample_has_its_number_and_meta_has_k():
    assert abs(len(sampled(numbers(5000), 50, 1.0, 3)) - 50) < 35  # drawn with repetitions
    assert sampled(torch.empty(5000, device="meta"), 50, 0.1, 3).shape == (50,)
