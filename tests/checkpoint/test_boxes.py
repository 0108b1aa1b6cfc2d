"""Boxes against sets of elements."""

import itertools
import math

import pytest
import torch

from minidist.checkpoint.boxes import Box, minus, missing, overlap, runs

SHAPES = [(), (1,), (7,), (3, 4), (4, 1), (2, 3, 4), (2, 1, 3, 2)]


def elements(box):
    return set(
        itertools.product(*(range(a, a + n) for a, n in zip(box.first, box.size, strict=True)))
    )


def some(shape, count=12):
    """Boxes within a shape, none of them empty."""
    random = torch.Generator().manual_seed(len(shape))
    for _ in range(count):
        ends = [sorted(torch.randint(0, n + 1, (2,), generator=random).tolist()) for n in shape]
        yield Box(
            tuple(min(a, n - 1) for (a, _), n in zip(ends, shape, strict=True)),
            tuple(max(b - min(a, n - 1), 1) for (a, b), n in zip(ends, shape, strict=True)),
        )


@pytest.mark.parametrize("shape", SHAPES)
def test_two_boxes(shape):
    for a, b in itertools.product(some(shape), some(shape)):
        both = overlap(a, b)
        assert (set() if both is None else elements(both)) == elements(a) & elements(b)
        assert both is None or elements(both)  # side by side is not overlap
        left = [elements(one) for one in minus(a, b)]
        assert set().union(*left) == elements(a) - elements(b)
        assert sum(map(len, left)) == len(elements(a) - elements(b))  # none twice
        assert len(left) <= max(1, 2 * len(shape))


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_missing(shape):
    whole, some_of_it = Box.of(shape), list(some(shape, 3))
    left = [elements(one) for one in missing(whole, some_of_it)]
    assert set().union(*left) == elements(whole).difference(*map(elements, some_of_it))


def test_nothing_is_missing_of_nothing():
    assert missing(Box.of((3, 0)), []) == []
    assert missing(Box.of(()), []) == [Box((), ())]


@pytest.mark.parametrize("shape", [*SHAPES, (3, 0)])
def test_runs(shape):
    numel = math.prod(shape)
    order = list(itertools.product(*map(range, shape)))
    for first, end in itertools.combinations_with_replacement(range(numel + 1), 2):
        boxes = list(runs(shape, first, end))
        in_order = [
            i
            for box in boxes
            for i in itertools.product(*(range(a, a + n) for a, n in zip(*box, strict=True)))
        ]
        assert in_order == order[first:end]
        assert len(boxes) <= max(1, 2 * len(shape) - 1)


def test_the_picture():
    assert list(map(str, runs((4, 4), 3, 14))) == ["[0:1, 3:4]", "[1:3, 0:4]", "[3:4, 0:2]"]


def test_views():
    x = torch.arange(12).view(3, 4)
    assert Box((1, 2), (2, 2)).view(x).tolist() == [[6, 7], [10, 11]]
    assert Box((1, 2), (2, 2)).within(Box((1, 1), (2, 3))) == Box((0, 1), (2, 2))
