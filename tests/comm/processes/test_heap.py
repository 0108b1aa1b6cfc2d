"""Memory that a rank has freed is there for its next tensor."""

import resource
import sys

import pytest
import torch

from minidist.comm import launch
from tests.largest import largest

MIB = 1 << 20


def faults(comm, lane):
    """Page faults of making, filling and freeing 48 MiB, the twentieth time and later."""

    def again(_=None):
        seen = []
        for _ in range(24):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            torch.ones(12 * MIB)
            seen.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        return seen[19:]

    return comm.stream(again).wait() if lane else again()


@pytest.mark.skipif(sys.platform != "linux", reason="another malloc")
@pytest.mark.parametrize("lane", [False, True])
def test_freed_memory_is_found_again(lane):
    assert largest(launch(faults, 1, lane)[0]) < 48 * MIB / 4096 / 10
