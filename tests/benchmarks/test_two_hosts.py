"""A host dies and comes back: the run goes on at its last checkpoint, and ends as if nothing had happened."""

import pytest

from benchmarks.hosts import missing
from benchmarks.two_hosts import run, serial
from tests.largest import largest


@pytest.mark.alone  # a host that is slow is taken for dead
def test_a_host_dies_and_comes_back():
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    found = run(24, 11, each=1)  # the second save, at step 10, began when the first was whole
    assert largest(abs(a - b) for a, b in zip(found.losses, serial(24), strict=True)) < 1e-10
    assert len(found.losses) == 24
    assert found.resumed in (5, 10) and found.resumed <= found.died
    assert f"goes on at step {found.resumed}" in found.printed[0] and "is lost" in found.printed[0]
