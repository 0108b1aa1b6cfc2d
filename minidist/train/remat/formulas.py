"""What checkpointing a chain of equal layers costs, by formula: bytes that are held for backward, and forwards.

x: bytes between two layers (the input of one).  a: bytes that one layer keeps, its input included.
Nothing here is taken from a run, nor from the code that runs. Source: Chen et al. 2016, sections 4.1, 4.3 and 4.4.
"""

from __future__ import annotations

import math


def segments_bytes(layers: int, segments: int, a: float, x: float) -> float:
    """The most bytes kept at once: the inputs of the segments before one, and all that it keeps itself, when repeated.

    The first L mod k segments have one layer more, so it is the last of these, or the last of all.
    """
    small, longer = divmod(layers, segments)
    last = (segments - 1) * x + small * a
    return max(last, (longer - 1) * x + (small + 1) * a) if longer else last


def segments_forwards(layers: int, segments: int) -> float:
    """Layers whose forward runs once more: all but those of the last segment, which is the smallest."""
    return layers - layers // segments


def best_segments(layers: int, a: float, x: float) -> int:
    """The number of segments that keeps the fewest bytes: near √(L·a/x), and √L where a layer keeps its input only."""
    return min(range(1, layers + 1), key=lambda k: segments_bytes(layers, k, a, x))


def halves_bytes(layers: int, a: float, x: float) -> float:
    """By halves: an input for each of the log₂ L halvings, and what one layer keeps. (Not a power of two: at most.)"""
    return math.ceil(math.log2(layers)) * x + a


def halves_forwards(layers: int) -> float:
    """By halves, L a power of two: L/2 layers once more for each of log₂ L halvings."""
    return layers / 2 * math.log2(layers)
