"""What two processes say to each other: a message, its header, and the ring buffers in shared memory that it passes.

Rings                a few slots for each ordered pair of ranks, and two semaphores
Outgoing, Incoming   one side of a transfer: where its bytes lie, and how many have moved
ShmWork              what `isend` and `irecv` return
"""

from __future__ import annotations

import ctypes
import itertools
import marshal
import mmap
import multiprocessing
import time
from collections.abc import Sequence

import torch

from .base import ANY, Mismatch, Recv, Send, Side, Work, describe, mismatch
from .program import caller, located

# ------------------------------------------------------------
# Ring buffers in shared memory: how bytes pass between two processes of one machine.
#
# For each ordered pair of ranks: SLOTS slots of equal size and two semaphores, `items` (filled slots)
# and `spaces` (free slots), which also order the memory accesses. A rank has one more semaphore, its
# bell, rung after each change that may concern it, so that it can sleep until any of its rings moves.
# A message is cut into segments, one a slot; the first begins with a header.
#
# Cost of N bytes: two copies, the receiver's beside the sender's (a pipeline of SLOTS segments), no
# system call unless somebody sleeps. Lamport 1977 (single producer, single consumer).


SLOTS = 4
HEADER = 512  # bytes at the start of a message's first slot
SEGMENT = 5e-3  # seconds that a segment takes on a slow wire, at most, unless it is a single page
_TOTAL = 64 << 20  # bytes of all rings together, at most: containers often give 64 MiB


class Rings:
    """All rings of a run of `n` ranks; make it before forking, everything is inherited.

    rate: bytes per second at which a rank's messages leave, where that is to be slow (see shm.py).
    """

    def __init__(self, n: int, rate: float | None = None):
        context = multiprocessing.get_context("fork")
        pairs = list(itertools.permutations(range(n), 2))  # (src, dst)
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

    def inherit(self, has: bool) -> None:
        """Whether processes that are forked from now on have this memory (on Linux; elsewhere they always do)."""
        if hasattr(mmap, "MADV_DONTFORK"):
            self._memory.madvise(mmap.MADV_DOFORK if has else mmap.MADV_DONTFORK)

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


class _End:
    """This rank's end of the ring from `src` to `dst`. `bell`: the other side's."""

    def __init__(self, rings: Rings, src: int, dst: int, other: int):
        self.slot, self.address = rings.slot, rings.address[src, dst]
        self.items = rings.items[src, dst]
        self.spaces = rings.spaces[src, dst]
        self.bell = rings.bells[other]
        self.count = 0  # segments moved

    def _place(self) -> int:
        """The address of the slot whose turn it is."""
        return self.address + self.count % SLOTS * self.slot

    def _segment(self, message) -> tuple[int, int, int]:
        """The next segment of a message (pointer, nbytes, moved, begun) counts as moved: its address in the slot, its
        address in the message's memory, its length. A message without any bytes has one segment, too: its header."""
        skip = 0 if message.begun else HEADER
        at, pointer = self._place() + skip, message.pointer + message.moved
        size = min(self.slot - skip, message.nbytes - message.moved)
        message.begun = True
        message.moved += size
        self.count += 1
        return at, pointer, size


class Outgoing(_End):
    """The sender's end. Messages leave in the order of `push`. `due`: when the next segment may leave."""

    due = 0.0

    def __init__(self, rings: Rings, src: int, dst: int):
        super().__init__(rings, src, dst, dst)

    def room(self, message) -> bool:
        """Take a free slot for the next segment of `message`, if there is one."""
        return self.spaces.acquire(False)

    def push(self, message) -> bool:
        """Write segments of `message` while there is room; True if any."""
        before = self.count
        while (message.moved < message.nbytes or not message.begun) and self.room(message):
            if not message.begun:
                ctypes.memmove(self._place(), message.header, len(message.header))
            at, pointer, size = self._segment(message)
            ctypes.memmove(at, pointer, size)
            self.items.release()
            self.bell.release()
        return self.count > before


class Incoming(_End):
    """The receiver's end."""

    def __init__(self, rings: Rings, src: int, dst: int):
        super().__init__(rings, src, dst, src)
        self._held = False  # a filled slot whose header has been looked at

    def _filled(self) -> bool:
        """Hold the next filled slot, if there is one."""
        self._held = self._held or self.items.acquire(False)
        return self._held

    def header(self) -> tuple | None:
        """The header of the next message, if it has come; it stays the next one until `pull`."""
        return marshal.loads(ctypes.string_at(self._place(), HEADER)) if self._filled() else None

    def pull(self, message) -> bool:
        """Read segments into `message` while there are any; True if any."""
        before = self.count
        while (message.moved < message.nbytes or not message.begun) and self._filled():
            at, pointer, size = self._segment(message)
            ctypes.memmove(pointer, at, size)
            self._held = False
            self.spaces.release()
            self.bell.release()
        return self.count > before


# ------------------------------------------------------------
# A message: what its header says, where its bytes lie, and the Work that waits for it.


def says(op: Send | Recv, checked: bool, call: tuple | None = None) -> tuple:
    """What the header of a message says of this side, in types that marshal knows. call: see `Comm.call`."""
    if op.x.is_meta:
        raise ValueError(
            f"a meta tensor, {describe(op.x)}, has no values to pass between processes: use a World"
        )
    filename, line = (caller() if checked else None) or ("", 0)
    return (
        tuple(op.x.shape),
        str(op.x.dtype).removeprefix("torch."),
        op.label and _at_most(120, op.label),
        call,
        _at_most(200, filename[::-1])[::-1],
        line,
    )


def _at_most(nbytes: int, text: str) -> str:
    """The beginning of `text`, cut to fit in a header."""
    return text.encode()[:nbytes].decode(errors="ignore")


def side(rank: int, said: tuple) -> Side:
    """The same for people: `rank` is that side's rank."""
    shape, dtype, label, call, filename, line = said
    return Side(
        rank, shape, getattr(torch, dtype), label, call, located(filename, line) if filename else ""
    )


def mismatched(src: int, sent: tuple, rank: int, said: tuple) -> Mismatch:
    """The error of a message of whose shape, dtype, label or collective its sender says another thing than its receiver."""
    return Mismatch(mismatch(side(src, sent), side(rank, said)))


def settled(x: torch.Tensor) -> torch.Tensor:
    """`x` itself if the bytes from `x.data_ptr()` on are its values, without strides and without a postponed conjugate or
    minus; else a copy of which that is true."""
    return x.resolve_conj().resolve_neg().contiguous()


class _Transfer:
    """One side of a transfer: where its bytes lie, and how many have moved."""

    def __init__(self, flat: torch.Tensor):
        self.use(flat)
        self.nbytes = flat.nbytes
        self.moved = 0
        self.begun = False

    def use(self, flat: torch.Tensor) -> None:
        """This is its memory now."""
        self.flat = flat
        self.pointer = flat.data_ptr()

    @property
    def complete(self) -> bool:
        return self.begun and self.moved >= self.nbytes


class Message(_Transfer):
    """An operation of this rank; `peer` is the other side's rank in the whole run (or ANY)."""

    def __init__(self, work: ShmWork, op: Send | Recv, comm, checked: bool):
        self.said = says(op, checked, comm.call)
        super().__init__(settled(op.x.detach().to("cpu")))
        self.work = work
        self.op = op
        self.comm = comm
        self.sending = isinstance(op, Send)
        peer = op.dst if isinstance(op, Send) else op.src
        self.peer = peer if peer == ANY else comm.ranks[peer]
        self.over = False
        self.posted = time.monotonic()
        self.header = (
            packed((comm.channel, self.nbytes, self.posted, self.said)) if self.sending else b""
        )
        self.came: tuple = ()  # of a receive: the header of what fills it

    def finish(self, error: BaseException | None = None) -> None:
        staged = self.pointer != self.op.x.data_ptr()
        if error is None and not self.sending and not self.over and staged:
            self.op.x.detach().copy_(self.flat)
        self.over = True
        self.work.error = self.work.error or error
        self.work.parts -= 1

    def mismatch(self, header: tuple) -> Mismatch | None:
        """What is wrong with a message that has come for this receive."""
        sent, expected = header[3], self.said
        if sent[:4] == expected[:4]:
            return None
        return mismatched(self.peer, sent, self.comm.ranks[self.comm.rank], expected)

    def __str__(self) -> str:
        verb, to = ("send", "to") if self.sending else ("receive", "from")
        rank = "any rank" if self.peer == ANY else f"rank {self.peer}"
        label = f" [{self.op.label}]" if self.op.label else ""
        return f"{verb} of {describe(self.op.x)} {to} {rank}{label}"


class Aside(_Transfer):
    """A message that came before its receive was posted, or that nobody can take: bytes of our own."""

    def __init__(self, header: tuple):
        super().__init__(torch.empty(header[1], dtype=torch.uint8))
        self.came = header

    def give(self, receive: Message) -> None:
        if receive.nbytes:
            ctypes.memmove(receive.pointer, self.pointer, self.nbytes)


class ShmWork(Work):
    """Finished when all its messages are."""

    def __init__(self, endpoint, comm, ops: Sequence[Send | Recv]):
        self._endpoint = endpoint
        self.comm = comm
        self.call = comm.call
        self.parts = len(ops)  # messages that are not over
        self.error: BaseException | None = None
        self.source = None
        self.messages = [Message(self, op, comm, endpoint.checked) for op in ops]

    def done(self) -> bool:
        self._endpoint.progress()
        if self.parts:
            self._endpoint.check_alive()
        return self.parts == 0

    def waits(self) -> bool:
        """Whether something has to come yet: all, but no sends after a mismatch."""
        if isinstance(self.error, Mismatch):
            return any(not message.sending and not message.over for message in self.messages)
        return self.parts > 0

    def wait(self) -> None:
        if self.waits():
            self._endpoint.wait(self)
        self._endpoint.open.pop(self, None)
        self.messages = []  # they hold this work, and their tensors
        if self.error is not None:
            raise self.error

    def __str__(self) -> str:
        return " and ".join(str(m) for m in self.messages if not m.over)
