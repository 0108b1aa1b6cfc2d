"""A ring between two processes, here with both ends in one."""

import ctypes
import itertools
import mmap

import pytest

from minidist.comm.processes.rings import HEADER, SLOTS, Incoming, Outgoing, Rings, packed


class Bytes:
    def __init__(self, data=None, size=0, header=None):
        self.array = (ctypes.c_char * max(1, size if data is None else len(data)))()
        self.nbytes = size if data is None else len(data)
        self.moved = 0
        self.begun = False
        self.header = header
        self.pointer = ctypes.addressof(self.array)
        if data:
            ctypes.memmove(self.pointer, data, len(data))


def ends(n=2):
    rings = Rings(n)
    return rings, Outgoing(rings, 0, 1), Incoming(rings, 0, 1)


@pytest.mark.parametrize("slots", [0, 1e-3, 1, 1.5, 4, 9.7])
def test_a_message_of_any_length(slots):
    rings, out, into = ends()
    data = bytes(i * 7 % 251 for i in range(int(slots * out.slot)))
    message, room = Bytes(data, header=packed(("main", len(data)))), Bytes(size=len(data))
    assert into.header() is None
    moves = 0
    while not (room.begun and room.moved == room.nbytes):
        moved = out.push(message)
        for _ in range(0 if room.begun else 2):  # as often as one asks
            assert into.header() == ("main", len(data))
        assert into.pull(room) or moved
        moves += 1
    assert room.array.raw[: len(data)] == data
    assert out.count == into.count == max(1, -(-(len(data) + HEADER) // out.slot))
    assert moves == -(-out.count // SLOTS)  # all slots are filled before the other side is needed
    assert rings.unread() == []


def test_a_full_ring_takes_no_more():
    rings, out, into = ends()
    for i in range(SLOTS):
        assert out.push(Bytes(b"x", header=packed((i,))))
    late = Bytes(b"y", header=packed((99,)))
    assert not out.push(late) and not late.begun
    assert rings.unread() == [(0, 1)]
    for i in range(SLOTS):
        assert into.header() == (i,)
        assert into.pull(Bytes(size=1))
    assert out.push(late) and into.header() == (99,)


def test_each_movement_rings_the_other_side():
    rings, out, into = ends()
    out.push(Bytes(b"x", header=packed((0,))))
    assert rings.bells[1].acquire(False) and not rings.bells[1].acquire(False)
    into.pull(Bytes(size=1))
    assert rings.bells[0].acquire(False) and not rings.bells[0].acquire(False)
    rings.flag(0, 2)
    assert rings.flags[0] == 2 and rings.flags[1] == 0
    assert all(bell.acquire(False) for bell in rings.bells)


@pytest.mark.parametrize("n", [1, 2, 5, 16])
def test_rings_lie_apart_and_in_64_mib(n):
    rings = Rings(n)
    starts = sorted(rings.address.values())
    assert len(starts) == n * (n - 1) and rings.slot % mmap.PAGESIZE == 0
    assert all(b - a >= SLOTS * rings.slot for a, b in itertools.pairwise(starts))
    assert len(rings._memory) <= (64 << 20) + mmap.PAGESIZE


def test_packed():
    assert len(packed(("x" * 100,))) <= HEADER
    with pytest.raises(ValueError, match=f"room for {HEADER} bytes, and this takes"):
        packed(("x" * HEADER,))
