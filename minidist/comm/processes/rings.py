"""Ring buffers in shared memory: how bytes pass between two processes of one machine.

For each ordered pair of ranks: SLOTS slots of equal size and two semaphores, `items` (filled slots)
and `spaces` (free slots), which also order the memory accesses. A rank has one more semaphore, its
bell, rung after each change that may concern it, so that it can sleep until any of its rings moves.
A message is cut into segments, one a slot; the first begins with a header.

Cost of N bytes: two copies, the receiver's beside the sender's (a pipeline of SLOTS segments), no
system call unless somebody sleeps. Lamport 1977 (single producer, single consumer).
"""

from __future__ import annotations

import ctypes
import marshal
import mmap
import multiprocessing

SLOTS = 4
HEADER = 512  # bytes at the start of a message's first slot
SEGMENT = 5e-3  # seconds that a segment takes on a slow wire, at most, unless it is a single page
_TOTAL = 64 << 20  # bytes of all rings together, at most: containers often give 64 MiB


class Rings:
    """All rings of a run of `n` ranks; make it before forking, everything is inherited.

    rate: bytes per second at which a rank's messages leave, where that is to be slow (see pace.py).
    """

    def __init__(self, n: int, rate: float | None = None):
        context = multiprocessing.get_context("fork")
        pairs = [(s, d) for s in range(n) for d in range(n) if s != d]
        pages = _TOTAL // max(1, len(pairs)) // SLOTS // mmap.PAGESIZE
        slow = 64 if rate is None else int(rate * SEGMENT / mmap.PAGESIZE)
        self.n = n
        self.rate = rate
        self.slot = mmap.PAGESIZE * max(1, min(pages, 64, slow))
        self._memory = mmap.mmap(-1, max(1, len(pairs)) * SLOTS * self.slot + mmap.PAGESIZE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        # a byte for each rank: 0 running, 1 returned, 2 dead
        self.flags = memoryview(self._memory)[: mmap.PAGESIZE]
        self.bells = [context.Semaphore(0) for _ in range(n)]
        self.items = {pair: context.Semaphore(0) for pair in pairs}
        self.spaces = {pair: context.Semaphore(SLOTS) for pair in pairs}
        self.address = {
            pair: base + mmap.PAGESIZE + i * SLOTS * self.slot for i, pair in enumerate(pairs)
        }

    def flag(self, rank: int, value: int) -> None:
        """Tell every rank that `rank` has returned (1) or died (2)."""
        self.flags[rank] = value
        for bell in self.bells:
            bell.release()

    def unread(self) -> list[tuple[int, int]]:
        """Pairs (src, dst) with a message that dst never received (where semaphores tell their value)."""
        try:
            return [pair for pair, spaces in self.spaces.items() if spaces.get_value() < SLOTS]
        except NotImplementedError:  # macOS
            return []


def packed(header: tuple) -> bytes:
    """A header as it travels. Raises ValueError if it does not fit (some 50 dimensions, or groups within groups)."""
    data = marshal.dumps(header)
    if len(data) > HEADER:
        raise ValueError(
            f"the header of a message has room for {HEADER} bytes, and this takes {len(data)}: {header}"
        )
    return data


class Outgoing:
    """This rank's end of the ring to `dst`. Messages leave in the order of `put`."""

    def __init__(self, rings: Rings, src: int, dst: int):
        self.slot, self.address = rings.slot, rings.address[src, dst]
        self.items = rings.items[src, dst]
        self.spaces = rings.spaces[src, dst]
        self.bell = rings.bells[dst]
        self.count = 0  # segments written

    def room(self, message) -> bool:
        """Take a free slot for the next segment of `message`, if there is one."""
        return self.spaces.acquire(False)

    def push(self, message) -> bool:
        """Write segments of `message` (header, pointer, nbytes, moved) while there is room; True if any."""
        before = self.count
        while (message.moved < message.nbytes or not message.begun) and self.room(message):
            at, room = self.address + self.count % SLOTS * self.slot, self.slot
            if not message.begun:
                ctypes.memmove(at, message.header, len(message.header))
                at = at + HEADER
                room = room - HEADER
                message.begun = True
            size = min(room, message.nbytes - message.moved)
            if size:
                ctypes.memmove(at, message.pointer + message.moved, size)
            message.moved += size
            self.count += 1
            self.items.release()
            self.bell.release()
        return self.count > before


class Incoming:
    """This rank's end of the ring from `src`."""

    def __init__(self, rings: Rings, src: int, dst: int):
        self.slot, self.address = rings.slot, rings.address[src, dst]
        self.items = rings.items[src, dst]
        self.spaces = rings.spaces[src, dst]
        self.bell = rings.bells[src]
        self.count = 0  # segments read
        self._held = False  # a filled slot whose header has been looked at

    def header(self) -> tuple | None:
        """The header of the next message, if it has come; it stays the next one until `pull`."""
        if not self._held and not self.items.acquire(False):
            return None
        self._held = True
        return marshal.loads(
            ctypes.string_at(self.address + self.count % SLOTS * self.slot, HEADER)
        )

    def pull(self, message) -> bool:
        """Read segments into `message` (pointer, nbytes, moved) while there are any; True if any."""
        before = self.count
        while message.moved < message.nbytes or not message.begun:
            if not self._held and not self.items.acquire(False):
                break
            at, room = self.address + self.count % SLOTS * self.slot, self.slot
            if not message.begun:
                at = at + HEADER
                room = room - HEADER
                message.begun = True
            size = min(room, message.nbytes - message.moved)
            if size:
                ctypes.memmove(message.pointer + message.moved, at, size)
            message.moved += size
            self._held = False
            self.count += 1
            self.spaces.release()
            self.bell.release()
        return self.count > before
