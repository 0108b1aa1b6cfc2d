"""Large batches on the digits: wrong variants fail by more than the spread of five seeds; steps by size of the batch."""

import statistics

import pytest

from benchmarks.optim import critical, table
from tests.largest import largest, smallest

PAIRS = [  # right, wrong
    ("linear, k = 8", "linear, k = 8, no warm-up"),
    ("LARS, k = 16", "linear, k = 16"),
    ("LAMB, k = 16", "linear, k = 16"),
    ("LARS, k = 32", "linear, k = 32"),
    ("LAMB, k = 32", "linear, k = 32"),
    ("LAMB, k = 32", "root, k = 32"),
]


@pytest.mark.full
def test_wrong_variants_fail(figure):
    found = table()
    for name, seeds in found.items():
        figure(f"accuracy in percent, five seeds: {name}: {' '.join(f'{x:.1f}' for x in seeds)}")
    for right, wrong in PAIRS:
        apart = statistics.mean(found[right]) - statistics.mean(found[wrong])
        assert apart > largest(found[right]) - smallest(found[right]), (right, wrong)


@pytest.mark.full
def test_steps_by_size_of_the_batch(figure):
    for batch, (mean, says) in critical().items():
        figure(f"batch {batch}: {mean:.1f} steps to the loss, the law says {says:.1f}")
        assert abs(mean / says - 1) < 0.2
