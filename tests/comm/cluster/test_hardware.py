"""Devices, levels, and whom a link may join."""

from types import SimpleNamespace

import pytest
import torch

from minidist.comm import Device, Level
from minidist.comm.cluster.hardware import ends

DEVICE = Device("toy", {torch.float32: 1e9, torch.bfloat16: 4e9}, memory=1 << 20, bandwidth=1e8)


def test_peaks():
    assert (DEVICE.peak(torch.float32), DEVICE.peak(torch.bfloat16), DEVICE.launch) == (
        1e9,
        4e9,
        0.0,
    )
    with pytest.raises(ValueError, match="toy has a peak for float32, bfloat16, not for int64"):
        DEVICE.peak(torch.int64)


def test_a_part():
    half = DEVICE.part(2)
    assert (
        half == Device("toy", {torch.float32: 5e8, torch.bfloat16: 2e9}, 1 << 19, 5e7)
        and DEVICE.part(1) == DEVICE
    )


def test_levels_are_values():
    assert Level(1.0, 2.0) == Level(1.0, 2.0, duplex=True, share=1) != Level(1.0, 2.0, share=2)
    with pytest.raises(AttributeError):
        Level(1.0, 2.0).alpha = 3.0


def test_ends():
    comm = SimpleNamespace(rank=1, size=3)
    assert (
        ends(comm, 2, None) == (1, 2) and ends(comm, 1, 2) == (2, 1) and ends(comm, 0, 1) == (1, 0)
    )
    for dst, src, words in [
        (3, None, "rank 3: there are 3 ranks, 0 to 2"),
        (0, -1, "rank -1: there are 3"),
        (1, None, "from rank 1 to rank 1"),
        (0, 0, "from rank 0 to rank 0"),
    ]:
        with pytest.raises(ValueError, match=words):
            ends(comm, dst, src)
