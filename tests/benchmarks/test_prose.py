"""The trainer on real text: Python's reference, in 1,000 steps under torchrun."""

import pytest

from benchmarks.prose import prose


@pytest.mark.full
def test_it_writes_better_than_xz_packs(figure):
    found = prose()
    figure(str(found))
    assert found.bits < found.xz and found.known > 0.9
