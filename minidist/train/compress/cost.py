"""What the average of a bucket sends, as formulas: bytes of all ranks together, by rings, with n of them.

    N numbers of w bytes in P tensors     flags tell which ranks have a gradient, one number a tensor
    dense      2(n−1)·w(N + P)
    half       2(n−1)·2(N + P)
    sign       2(n−1)·wP + n(n−1)·(⌈N/8⌉ + wP)
    powersgd   2(n−1)·w(P + exact + Σ r(a + b))        over matrices (a, b); exact: numbers in all other tensors
    dgc        2(n−1)·w(P + exact) + n(n−1)·((w + 2)K + 8⌈N/65536⌉)       exact: numbers in small tensors; K sent

An all-reduce sends every number 2(n−1) times, an all-gather every rank's n−1 times. Nothing here is taken from a run.
A sampled threshold sends 8n(n−1) more, and other K, which only a run can tell; weights 16(n−1) more for each backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod


def dense_bytes(shapes: Sequence[Sequence[int]], n: int, w: int = 4) -> int:
    """shapes: of the gradients in a bucket.  w: bytes of a number."""
    return 2 * (n - 1) * w * (_numbers(shapes) + len(shapes))


def half_bytes(shapes: Sequence[Sequence[int]], n: int) -> int:
    return dense_bytes(shapes, n, 2)


def sign_bytes(shapes: Sequence[Sequence[int]], n: int, w: int = 4) -> int:
    gathered = ceil(_numbers(shapes) / 8) + w * len(shapes)
    return 2 * (n - 1) * w * len(shapes) + n * (n - 1) * gathered


def powersgd_bytes(
    shapes: Sequence[Sequence[int]], n: int, rank: int = 1, min_rate: float = 2.0, w: int = 4
) -> int:
    """After `start`."""
    numbers = len(shapes)
    for shape in shapes:
        rows, columns = (shape[0], prod(shape[1:])) if len(shape) > 1 else (1, prod(shape))
        thin = min(rows, columns, rank) * (rows + columns)
        numbers += thin if thin * min_rate < rows * columns else rows * columns
    return 2 * (n - 1) * w * numbers


def dgc_bytes(
    shapes: Sequence[Sequence[int]], n: int, sparsity: float = 0.999, small: int = 1024, w: int = 4
) -> int:
    """At one sparsity, with the k largest exactly."""
    lengths = [prod(shape) for shape in shapes]
    exact = sum(length for length in lengths if length < small)
    entries = sum(max(1, round((1 - sparsity) * length)) for length in lengths if length >= small)
    gathered = (w + 2) * entries + 8 * ceil(sum(lengths) / 65536) if entries else 0
    return 2 * (n - 1) * w * (len(shapes) + exact) + n * (n - 1) * gathered


def _numbers(shapes: Sequence[Sequence[int]]) -> int:
    return sum(map(prod, shapes))
