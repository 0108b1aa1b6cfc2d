"""The formulas beside each other, and beside small sums by hand; the traces are compared in test_optimizer."""

import pytest

from minidist.train.local_sgd import average_bytes, run_bytes, run_seconds


def test_by_hand():
    """10 numbers of 4 bytes, 3 ranks: each sends 4/3 of 40 bytes; all together 160."""
    assert average_bytes(10, 3) == 160
    assert average_bytes(10, 3, itemsize=2, copies=3) == 240
    assert average_bytes(10, 1) == 0


@pytest.mark.parametrize(
    ("steps", "H", "start", "said"),
    [
        (8, 1, 0, 8 * 160),
        (8, 4, 0, 2 * 160),
        (9, 4, 0, 2 * 160),
        (3, 4, 0, 0),
        (8, 4, 8, 8 * 192),
        (8, 4, 4, 4 * 192 + 160),
        (5, 4, 9, 5 * 192),
    ],
)
def test_a_run(steps, H, start, said):
    """Two tensors: data parallelism sends 12 numbers, 192 bytes."""
    assert run_bytes(steps, H, 10, 3, start=start, tensors=2) == said


def test_seconds():
    """2 ranks, 1,000 bytes: two messages of 500 bytes a step, 1 ms and 0.5 ms each; in two buckets 1 ms more twice."""
    alpha, beta = 1e-3, 1e-6
    assert run_seconds(8, 1, 0.01, 250, 2, alpha, beta) == pytest.approx(8 * (0.01 + 2 * 1.5e-3))
    assert run_seconds(8, 4, 0.01, 250, 2, alpha, beta) == pytest.approx(8 * 0.01 + 2 * 2 * 1.5e-3)
    assert run_seconds(8, 4, 0.01, 250, 2, alpha, beta, buckets=2) == pytest.approx(
        8 * 0.01 + 2 * 2 * 2.5e-3
    )
