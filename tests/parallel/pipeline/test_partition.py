"""The best contiguous partition, beside all that there are."""

import itertools
import random

import pytest
import torch
from torch import nn

from minidist.models import gpt, sequence
from minidist.parallel.pipeline import by_count, by_parameters, by_time, partition
from tests.largest import smallest


def every_partition(L, S):
    for cuts in itertools.combinations(range(1, L), S - 1):
        yield list(zip([0, *cuts], [*cuts, L], strict=True))


def largest(costs, parts):
    return max(sum(costs[first:end]) for first, end in parts)


@pytest.mark.parametrize("kind", ["whole", "real", "zeros", "one large"])
def test_no_partition_is_better(kind):
    draw = random.Random(kind)
    for _ in range(40):
        L = draw.randint(1, 9)
        costs = {
            "whole": [draw.randint(1, 9) for _ in range(L)],
            "real": [draw.random() for _ in range(L)],
            "zeros": [draw.choice([0, 0, 3]) for _ in range(L)],
            "one large": [draw.choice([1, 50]) for _ in range(L)],
        }[kind]
        for S in range(1, L + 1):
            parts = partition(costs, S)
            assert parts in list(every_partition(L, S)), "contiguous, none empty, all layers"
            least = min(largest(costs, other) for other in every_partition(L, S))
            assert largest(costs, parts) == pytest.approx(least, rel=1e-12)


def test_by_hand():
    assert partition([1, 1, 1, 4, 1, 1, 1], 3) == [(0, 3), (3, 4), (4, 7)]
    assert partition([1] * 10, 4) == [(0, 2), (2, 4), (4, 7), (7, 10)]


@pytest.mark.parametrize(
    ("costs", "S", "words"),
    [
        ([1, 1], 3, "2 layers do not make 3"),
        ([1], 0, "1 layers do not make 0"),
        ([1, -2, 1], 2, "not -2"),
    ],
)
def test_what_cannot_be(costs, S, words):
    with pytest.raises(ValueError, match=words):
        partition(costs, S)


def test_parameters_and_count():
    parts = sequence(gpt(layers=2, hidden=8, heads=2, vocab=20, context=4))
    assert by_count(parts) == [1, 1, 1, 1]
    layer = 12 * 64 + 13 * 8
    assert by_parameters(parts) == [24 * 8, layer, layer, 20 * 8 + 2 * 8]


class Slow(nn.Module):
    """Many small products, forward and backward."""

    def __init__(self, times):
        super().__init__()
        self.times, self.weight = times, nn.Parameter(torch.eye(64))

    def forward(self, x):
        for _ in range(self.times):
            x = torch.tanh(x @ self.weight)
        return x


def test_time_is_measured():
    model = nn.Sequential(Slow(1), Slow(60), Slow(1))
    costs = by_time(model, torch.randn(8, 64), repeats=3)
    assert len(costs) == 3 and smallest(costs) > 0
    assert costs[1] > 3 * max(costs[0], costs[2])


def test_measuring_leaves_no_trace():
    model = nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    before = {name: b.clone() for name, b in model.named_buffers()}
    state = torch.get_rng_state()
    assert len(by_time(model, torch.arange(7))) == 4
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())
    assert all(p.grad is None for p in model.parameters())
