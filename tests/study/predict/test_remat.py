"""Formulas against counting by hand."""

import math

import pytest

from minidist.split import uneven
from minidist.study.predict import (
    halves_bytes,
    halves_forwards,
    segments_bytes,
    segments_forwards,
)


# ------------------------------------------------------------
# activation checkpointing: layer by layer, what lives at each moment
def counted(layers, segments, a, x):
    """The largest sum, over segments, of the inputs before it and all that its layers keep."""
    return max(i * x + size * a for i, size in enumerate(uneven(layers, segments)))


@pytest.mark.parametrize("layers", [1, 2, 7, 16, 31, 64])
def test_segments(layers):
    for segments in range(1, layers + 1):
        for a, x in ((1, 1), (2, 1), (34, 2)):
            assert segments_bytes(layers, segments, a, x) == counted(layers, segments, a, x)
        assert segments_forwards(layers, segments) == layers - uneven(layers, segments)[-1]


@pytest.mark.parametrize("layers", [4, 16, 64, 256])
def test_the_root(layers):
    root = math.sqrt(layers)
    assert segments_bytes(layers, round(root), 1, 1) == 2 * root - 1
    for a, x in ((1, 1), (4, 1), (17, 1)):
        best = min(segments_bytes(layers, k, a, x) for k in range(1, layers + 1))
        assert best <= 2 * math.sqrt(layers * a * x) + a


def halved(layers, a, x):
    """(bytes, forwards more) by the recursion itself."""
    if layers == 1:
        return a, 0
    first, second = halved(layers - layers // 2, a, x), halved(layers // 2, a, x)
    return max(first[0], x + second[0]), layers - layers // 2 + first[1] + second[1]


@pytest.mark.parametrize("layers", [1, 2, 4, 8, 64, 1024])
def test_halves(layers):
    assert (halves_bytes(layers, 7, 2), halves_forwards(layers)) == halved(layers, 7, 2)


@pytest.mark.parametrize("layers", [3, 5, 9, 25, 100])
def test_halves_of_other_numbers_at_most(layers):
    assert halved(layers, 7, 2)[0] <= halves_bytes(layers, 7, 2)
