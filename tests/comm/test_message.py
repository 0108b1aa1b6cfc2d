"""What a message says of itself, and where its bytes lie."""

import ctypes
import itertools
import mmap
from types import SimpleNamespace

import pytest
import torch

from minidist.comm import ANY, PeerLost, Recv, Send
from minidist.comm.message import (
    HEADER,
    SLOTS,
    Aside,
    Incoming,
    Outgoing,
    Rings,
    ShmWork,
    packed,
    says,
    settled,
    side,
)


def message(op):
    comm = SimpleNamespace(
        ranks=[2, 0, 5], rank=1, channel="main", call=None, local=[2, 0, 5].index
    )
    return ShmWork(SimpleNamespace(checked=True), comm, [op]).messages[0]


def test_a_side_survives_its_travel():
    said = says(Send(torch.ones(2, 3, dtype=torch.bfloat16), 1, "grad"), checked=True)
    again = side(7, said)
    assert again[:4] == (7, (2, 3), torch.bfloat16, "grad")
    assert again.where.startswith("test_message.py:") and "torch.bfloat16" in again.where
    assert side(0, says(Recv(torch.ones(()), ANY), checked=False)) == (
        0,
        (),
        torch.float32,
        None,
        None,
        "",
    )


def test_long_words_are_cut_to_fit():
    said = says(Send(torch.ones([1] * 8), 1, "é" * 1000), checked=True)
    assert said[2] == "é" * 60
    assert len(packed(("main/1.0/2.1/lane 3", 1 << 60, 1.0, said))) <= 512


def test_settled():
    x = torch.tensor([1 + 1j, 2 + 2j])
    assert settled(x) is x
    for y in (x.conj(), x.conj().imag, x.real, torch.ones(4)[::2], torch.ones(2, 3).t()):
        z = settled(y)
        assert z.is_contiguous() and not z.is_conj() and not z.is_neg() and torch.equal(z, y)
        assert z.data_ptr() != y.data_ptr()


def test_bytes_are_taken_where_they_lie_or_staged():
    x = torch.arange(6.0).view(2, 3)
    direct, strided = message(Send(x, 0)), message(Recv(x[:, 1], 2))
    assert direct.pointer == x.data_ptr() and direct.nbytes == 24 and direct.peer == 2
    assert strided.pointer != x[:, 1].data_ptr() and strided.peer == 5
    strided.flat.fill_(9)
    assert x[0, 1] == 1
    strided.finish()
    assert x[:, 1].tolist() == [9, 9] and x.sum() == 18 + 0 + 2 + 3 + 5
    failed = message(Recv(x[:, 2], 2))
    failed.flat.fill_(7)
    failed.finish(PeerLost(2))
    assert x[0, 2] == 2 and isinstance(failed.work.error, PeerLost) and failed.over


def test_text_names_ranks_of_the_run():
    assert str(message(Send(torch.ones(2), 0, "x"))) == "send of (2,) float32 to rank 2 [x]"
    assert str(message(Recv(torch.ones(2), 2))) == "receive of (2,) float32 from rank 5"
    assert str(message(Recv(torch.ones(2), ANY))) == "receive of (2,) float32 from any rank"


def test_a_mismatch():
    receive = message(Recv(torch.ones(2), 2, "a"))
    said = says(Send(torch.ones(2), 1, "a"), True)
    assert receive.mismatch(("main", 8, 0.0, said)) is None
    for op in (
        Send(torch.ones(3), 1, "a"),
        Send(torch.ones(2).int(), 1, "a"),
        Send(torch.ones(2), 1, "b"),
    ):
        error = receive.mismatch(("main", 8, 0.0, says(op, True)))
        assert (
            isinstance(error, ValueError)
            and "rank 5 sends" in str(error)
            and "rank 0 receives" in str(error)
        )


@pytest.mark.parametrize("into", [torch.zeros(2), torch.zeros(2, 2)[:, 0], torch.zeros(2, 1)[:, 0]])
def test_what_was_put_aside_is_given(into):
    aside = Aside(("main", 8, 0.0, ()))
    aside.flat.copy_(torch.tensor([1.0, 2.0]).view(torch.uint8))
    receive = message(Recv(into, 2))
    aside.give(receive)
    receive.finish()
    assert into.tolist() == [1, 2]


# ------------------------------------------------------------
# A ring between two processes, here with both ends in one.


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
