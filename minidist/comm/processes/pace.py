"""A slow wire: all that a rank sends leaves at so many bytes per second, whoever it is for.

Shared memory is too fast to show what it is good for to send less, or to send while computing. So the
sender holds each segment back until its last byte would have left: segments leave one after the other,
N bytes take N/rate seconds, and messages to several ranks take turns. Time runs while there is something to
send and room for it in the ring; a receiver that is late stops the wire, as a full buffer does.

A thread of the rank sleeps until the next segment is due, and moves it: so messages travel while the
program computes. Invariant: b bytes never leave in less than b/rate seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from math import inf

from .rings import HEADER, SEGMENT, Outgoing, Rings


class Wire:
    """The wire out of this rank: `rate` bytes per second; free from time `free` on."""

    def __init__(self, rate: float):
        self.rate, self.free = rate, 0.0
        self.booked = threading.Event()

    def book(self, nbytes: int, since: float) -> float:
        """When `nbytes` that wait since `since` will have left."""
        self.free = max(self.free, since) + nbytes / self.rate
        return self.free


class Paced(Outgoing):
    """An end of a ring whose segments leave on a slow wire. `due`: when the next one has left."""

    def __init__(self, rings: Rings, src: int, dst: int, wire: Wire):
        super().__init__(rings, src, dst)
        self.wire, self.due = wire, inf
        self._held = self._stalled = False  # has room for a segment; has been without

    def room(self, message) -> bool:
        now = time.monotonic()
        if not self._held:
            self._held = super().room(message)
            size = min(self.slot - (0 if message.begun else HEADER), message.nbytes - message.moved)
            if self._held:
                self.due = self.wire.book(size, now if self._stalled else message.posted)
            else:
                self.due = now + SEGMENT  # look again
            self._stalled = not self._held
            self.wire.booked.set()
        if not self._held or now < self.due:
            return False
        self._held, self.due = False, inf
        return True


def keep_moving(wire: Wire, next_due: Callable[[], float], move: Callable[[], None]) -> None:
    """Start the thread that calls `move` at the time `next_due()`, which may change whenever something is booked."""

    def run() -> None:
        while True:
            due = next_due()
            if due == inf:
                wire.booked.wait()
            elif (seconds := due - time.monotonic()) > 0:
                time.sleep(seconds)
            else:
                move()
            wire.booked.clear()

    threading.Thread(target=run, name="wire", daemon=True).start()
