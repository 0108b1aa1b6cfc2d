"""A host dies and comes back: the run goes on at its last checkpoint, and ends as if nothing had happened."""

import pytest

from benchmarks.hosts import left_over, missing, remove
from benchmarks.two_hosts import AWAY, run, serial
from tests.largest import largest
from tests.size import FULL


@pytest.mark.alone  # a host that is slow is taken for dead
def test_a_host_dies_and_comes_back(figure):
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    remove(left_over())
    # the second save, at step 10, began when the first was whole
    steps, at, each = (60, 20, 4) if FULL else (24, 11, 1)
    found = run(steps, at, each)
    off = largest(abs(a - b) for a, b in zip(found.losses, serial(steps), strict=True))
    figure(
        f"a host died after step {found.died}; the run went on at step {found.resumed}, {found.seconds:.1f} s later, "
        f"of which {AWAY:g} s the host was away; losses are off the serial ones by {off:.1e}"
    )
    assert off < 1e-10 and len(found.losses) == steps
    assert found.resumed <= found.died and (FULL or found.resumed in (5, 10))
    assert f"goes on at step {found.resumed}" in found.printed[0] and "is lost" in found.printed[0]
