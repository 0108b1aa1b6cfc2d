"""Counts what the ranks of an answer send each other, where the answer is not.

    rank 0 ── its rings ──▶ relay ── its rings ──▶ rank 1        (src, dst, bytes) of each message
    rank 1 ── its rings ──▶ relay ── its rings ──▶ rank 0

Each rank has shared memory with the relay alone, a process of its own in which no answer runs. What the header of a
message says that it has is what the relay copies. Of the header it passes on how long the message is and which Comm's, and
not what a sender might say beside: labels, shapes and names of files reach nobody, and are compared in Worlds. Messages
without any bytes are free until they are so many that their number, or their order, may say something.
"""

from __future__ import annotations

import ctypes
import itertools
import marshal
import re
import select
import time
from typing import NoReturn

from minidist.comm.message import HEADER, Incoming, Outgoing, Rings, packed

from .exam import encode
from .pipe import Pipe

IDLE = 0.0003  # seconds between two looks at rings in which nothing has come
EMPTY = (
    24  # so many messages without any bytes from one rank to another are free; more are a byte each
)
COMMS = 12  # that one rank uses towards another: groups, streams
CHANNEL = re.compile(r"main(/(\d{1,2}\.-?\d{1,2}|(lane|group) \d{1,2})){0,3}")  # of a Comm


class Relay:
    """The rings of `n` ranks, before they are forked: `only(r)` before rank r is, `only()` before the relay is."""

    def __init__(self, n: int):
        self.rings = [Rings(n) for _ in range(n)]

    def only(self, rank: int | None = None) -> None:
        """What is forked next has the rings of this rank, and none of another; of all of them without a rank."""
        for r, rings in enumerate(self.rings):
            rings.inherit(rank in (None, r))

    def forget(self, rank: int) -> None:
        """In the rank: its rings are all that it knows. The others' memory is not there, and never unmapped: something
        else may lie at that address by now."""
        for r, rings in enumerate(self.rings):
            if r != rank:
                rings.bells.clear()
                rings.items.clear()
                rings.spaces.clear()
                rings.address.clear()

    def serve(self, line: Pipe) -> NoReturn:
        """Pass on whatever comes, and say on `line`, whenever it is asked, what has been sent."""
        n = len(self.rings)
        sent: list[tuple[int, int, int]] = []
        links = [
            Link(self.rings, src, dst, sent) for src, dst in itertools.permutations(range(n), 2)
        ]
        told = [0] * n
        while True:
            # before the messages are looked at: a rank has sent them when it says that it has returned
            flags = [self.rings[rank].flags[rank] for rank in range(n)]
            moved = [link.move() for link in links]
            if not any(moved):
                waits = {link.pair[0] for link in links if link.held}
                for rank in range(n):
                    if flags[rank] and not told[rank] and rank not in waits:
                        told[rank] = min(flags[rank], 2)  # returned, or dead: once
                        for rings in self.rings:
                            rings.flag(rank, told[rank])
                if select.select([line.reads], [], [], IDLE)[0]:
                    line.receive(1.0)
                    line.send(encode(sent), 60.0)


class Link:
    """From the rings of `src` to those of `dst`, slot by slot."""

    def __init__(self, rings: list[Rings], src: int, dst: int, sent: list[tuple[int, int, int]]):
        self._from = Incoming(rings[src], src, dst)
        self._to = Outgoing(rings[dst], src, dst)
        self.pair = (src, dst)
        self._sent = sent
        self.held = False  # a filled slot that has not been passed on
        self._left = 0  # bytes of the message that is under way
        self._empty = 0  # messages without any
        self._channels: set[str] = set()

    def move(self) -> bool:
        """Pass on a slot, if one is filled here and one free there."""
        self.held = self.held or self._from.items.acquire(False)
        if not self.held or not self._to.spaces.acquire(False):
            return False
        here, there = self._from._place(), self._to._place()
        head = 0
        if not self._left:
            head = HEADER
            self._left = self._begin(ctypes.string_at(here, HEADER), there)
        size = min(self._from.slot - head, self._left)
        ctypes.memmove(there + head, here + head, size)
        self._left -= size
        self.held = False
        self._to.count += 1
        self._to.items.release()
        self._to.bell.release()
        self._from.count += 1
        self._from.spaces.release()
        self._from.bell.release()
        return True

    def _begin(self, said: bytes, there: int) -> int:
        """Count a message, and write what is to be known of it. Returns its bytes; ValueError where it has no header."""
        channel, nbytes, *_ = marshal.loads(said)
        if type(nbytes) is not int or nbytes < 0 or not CHANNEL.fullmatch(channel):
            raise ValueError(f"{nbytes} bytes on {channel}")
        self._channels.add(channel)
        if len(self._channels) > COMMS:
            raise ValueError(f"messages on more than {COMMS} Comms")
        header = packed(
            (channel, nbytes, time.monotonic(), ((nbytes,), "uint8", None, None, "", 0))
        )
        ctypes.memmove(there, header, len(header))
        self._empty += not nbytes
        self._sent.append((*self.pair, nbytes or int(self._empty > EMPTY)))
        return nbytes
