"""What a rank can tell another: the bytes of its messages, which are counted, and no more."""

import ctypes
import marshal

import pytest

from minicheck.relay import EMPTY, Link, Relay
from minidist.comm.message import Incoming, Outgoing, packed

SAID = ((3,), "float32", None, None, "cell", 7)


class Wire:
    """A message's way from rank 0 to rank 1, slot by slot."""

    def __init__(self):
        self.relay = Relay(2)
        self.sent = []
        self.link = Link(self.relay.rings, 0, 1, self.sent)
        self._out = Outgoing(self.relay.rings[0], 0, 1)
        self._in = Incoming(self.relay.rings[1], 0, 1)

    def send(self, channel, nbytes, said=SAID, data=None):
        """What arrives of a header, after the relay."""
        header = marshal.dumps((channel, nbytes, 1.0, said)) if data is None else data
        assert self._out.spaces.acquire(False)
        ctypes.memmove(self._out._place(), header, len(header))
        self._out.count += 1
        self._out.items.release()
        assert self.link.move()
        arrived = self._in.header()
        self._in._held = False
        self._in.count += 1
        self._in.spaces.release()
        return arrived


def test_a_message_is_counted_and_keeps_its_length_and_its_comm():
    wire = Wire()
    channel, nbytes, _, said = wire.send("main/1.2/lane 3", 12)
    assert (channel, nbytes) == ("main/1.2/lane 3", 12) and wire.sent == [(0, 1, 12)]
    assert said == ((12,), "uint8", None, None, "", 0)


def test_nothing_is_said_beside():
    """Not in a label, a shape, a file's name, a line, a time."""
    wire = Wire()
    label = wire.send(
        "main", 0, ((0, 1234567), "float64", "1234567", (1234567, "x"), "1234567", 1234567)
    )
    assert "1234567" not in str((label[:2], label[3:]))
    assert packed(("main", 0, 1.0, SAID)) and label[2] != 1.0


def test_many_empty_messages_are_counted():
    wire = Wire()
    for _ in range(EMPTY + 3):
        wire.send("main", 0)
    assert [nbytes for _, _, nbytes in wire.sent] == [0] * EMPTY + [1] * 3


@pytest.mark.parametrize(
    ("channel", "nbytes"),
    [
        ("main", -512),
        ("main", True),
        ("main", 1.5),
        ("any words", 8),
        ("main/1.2345678", 8),
        ("main/lane x", 8),
    ],
)
def test_what_is_no_header_ends_the_relay(channel, nbytes):
    with pytest.raises(ValueError, match="bytes on"):
        Wire().send(channel, nbytes)


def test_what_is_not_even_marshalled_ends_the_relay():
    with pytest.raises((ValueError, EOFError, TypeError)):
        Wire().send("", 0, data=b"nonsense" * 10)
