"""Processes of one machine that talk through ring buffers in shared memory."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from math import inf

import torch

from .base import (
    AGREE,
    ANY,
    Comm,
    Deadlock,
    Link,
    PeerLost,
    RankMissing,
    Recv,
    Send,
    ThreadLane,
    Work,
    check_job,
    order,
)
from .cluster import ends
from .message import HEADER, SEGMENT, Aside, Incoming, Message, Outgoing, Rings, ShmWork
from .trace import Trace, lane_of

# ------------------------------------------------------------
# A slow wire: all that a rank sends leaves at so many bytes per second, whoever it is for.
#
# Shared memory is too fast to show what it is good for to send less, or to send while computing. So the
# sender holds each segment back until its last byte would have left: segments leave one after the other,
# N bytes take N/rate seconds, and messages to several ranks take turns. Time runs while there is something to
# send and room for it in the ring; a receiver that is late stops the wire, as a full buffer does.
#
# A thread of the rank sleeps until the next segment is due, and moves it: so messages travel while the
# program computes. Invariant: b bytes never leave in less than b/rate seconds.


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
            seconds = due - time.monotonic()
            if due == inf:
                wire.booked.wait()
            elif seconds > 0:
                time.sleep(seconds)
            else:
                move()
            wire.booked.clear()

    threading.Thread(target=run, name="wire", daemon=True).start()


# ------------------------------------------------------------
# A rank keeps the memory it has freed: the next tensor of that size finds it warm.
#
# glibc gives a large block back to the system when a tensor dies, and takes a fresh one for the next. Each of
# its pages is then cleared anew at the first touch: 8,192 page faults for the receive buffer of 32 MiB in an
# all-reduce of 64 MiB on two ranks, which takes longer than to copy what is received.


_TRIM_THRESHOLD = -1
_MMAP_MAX = -4
_ARENA_MAX = -8  # of malloc.h


def keep_freed_memory() -> None:
    """From now on malloc returns nothing to the system, and all threads of this process share one heap.

    Call it before the process starts threads. Elsewhere than with glibc nothing is changed.
    """
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in ((_TRIM_THRESHOLD, -1), (_MMAP_MAX, 0), (_ARENA_MAX, 1)):
            mallopt(option, value)


# ------------------------------------------------------------
# A rank's end of all its rings, shared by its Comms and its threads.
#
# A rank's pending operations move whenever it waits for any of them: sends that found no room go on
# while it waits for a receive, so two-way traffic cannot block. A message for a channel on which nothing
# is expected yet is put aside only when something from its sender is wanted; else it stays in the ring,
# and its sender waits once the ring is full.
#
# Every wait has a timeout: `RankMissing` names the rank that did not come. Matching is by (source,
# channel), in the order of posting, in which wildcard receives have their place, as in MPI; shape, dtype, label and
# collective are compared on arrival. After a collective that failed on some ranks, messages of it that come later are
# dropped, and messages of the next one wait for its receives. Ranks here are of the whole run.


_WHY = ("", "its program returned before this was passed on", "it failed, or its process died")


class Endpoint:
    """Sends and receives of one process. `close()` before it ends."""

    def __init__(self, rings: Rings, rank: int, timeout: float, checked: bool, trace: Trace):
        self.rings = rings
        self.rank = rank
        self.timeout = timeout
        self.checked = checked
        self.trace = trace
        others = [r for r in range(rings.n) if r != rank]
        wire = None if rings.rate is None else Wire(rings.rate)
        ring_to = Outgoing if wire is None else functools.partial(Paced, wire=wire)
        self._out: dict[int, tuple[Outgoing, deque[Message]]] = {
            r: (ring_to(rings, rank, r), deque()) for r in others
        }
        self._in = {r: Incoming(rings, r, rank) for r in others}
        # by channel, in the order in which they were posted; and how many of them there are, by src or ANY
        self._receives: dict[str, list[Message]] = defaultdict(list)
        self._wanted: dict[int, int] = defaultdict(int)
        self._aside: dict[tuple, deque[Aside]] = defaultdict(deque)  # (src, channel)
        self._coming: dict[int, Message | Aside] = {}  # what the ring from src is filling
        # deaths that a wildcard receive on this channel has heard of
        self._heard_of: set[tuple[str, int]] = set()
        self.open: dict[Work, None] = {}  # posted and not yet waited for
        self.shared = False  # whether several threads wait here
        self._lock = threading.RLock()
        self._news = threading.Condition()
        self._led = False
        if wire is not None:
            keep_moving(wire, self._due, self._move)

    def post(self, comm, ops: Sequence[Send | Recv]) -> ShmWork:
        work = ShmWork(self, comm, ops)
        with self._lock:
            self.open[work] = None
            for message in work.messages:
                if message.sending:
                    self._out[message.peer][1].append(message)
                else:
                    self._receives[comm.channel].append(message)
                    self._wanted[message.peer] += 1
            self._serve_aside(comm.channel)
            self.progress()
        return work

    def progress(self) -> None:
        """Move whatever can move."""
        with self._lock:
            for ring, queue in self._out.values():
                while queue and ring.push(queue[0]):
                    if queue[0].complete:
                        queue.popleft().finish()
            for src, ring in self._in.items():
                while (
                    self._wanted[src] or self._wanted[ANY] or src in self._coming
                ) and self._pull(src, ring):
                    pass

    def _due(self) -> float:
        """When the next segment has left on a slow wire."""
        return min((ring.due for ring, queue in self._out.values() if queue), default=inf)

    def _move(self) -> None:
        self.progress()
        self.rings.bells[self.rank].release()  # for the threads that wait

    def _pull(self, src: int, ring: Incoming) -> bool:
        if src not in self._coming:
            header = ring.header()
            if header is None:
                return False
            self._coming[src] = self._target(src, header)
        message = self._coming[src]
        moved = ring.pull(message)
        if message.complete:
            del self._coming[src]
            if isinstance(message, Message):
                self._record(src, message.came)
                message.finish()
            else:
                self._serve_aside(message.came[0])
        return moved

    def _target(self, src: int, header: tuple) -> Message | Aside:
        """The receive that this message is for; without one, or with a wrong one, it is put aside."""
        receive, wanted = self._receive_for(src, header)
        if receive is not None and receive.nbytes == header[1]:
            receive.came = header
            return receive
        aside = Aside(header)
        if wanted:
            self._aside[src, header[0]].append(aside)
        return aside

    def _receive_for(self, src: int, header: tuple) -> tuple[Message | None, bool]:
        """Take the oldest receive for a message off its queue; fail it if it expects another shape, and pass on to the
        next one if that was of a collective that the sender has left. Without a receive: whether one may still want it.
        """
        channel, call = header[0], header[3][3]
        for receive in [r for r in self._receives[channel] if r.peer in (src, ANY)]:
            later = order(call, receive.said[3])
            if later < 0:
                return None, False
            self._withdraw(receive)
            receive.peer = src
            receive.work.source = receive.comm.local(src)
            error = (
                receive.mismatch(header) if self.checked or receive.nbytes != header[1] else None
            )
            if error is not None:
                receive.finish(error)
                receive.nbytes = -1
            if later == 0:
                return receive, False
        return None, True

    def _withdraw(self, receive: Message) -> None:
        """It is not posted any more."""
        self._receives[receive.comm.channel].remove(receive)
        self._wanted[receive.peer] -= 1

    def _serve_aside(self, channel: str) -> None:
        """Give what was put aside to receives that have been posted since."""
        for (src, on), queue in self._aside.items():
            while on == channel and queue and queue[0].complete:
                receive, wanted = self._receive_for(src, queue[0].came)
                if wanted:
                    break
                aside = queue.popleft()
                if receive is not None and not receive.over:
                    aside.give(receive)
                    self._record(src, aside.came)
                    receive.finish()

    def abandon(self, comm, call: tuple) -> None:
        """A collective has failed: what it posted on `comm`, and nobody has waited for, takes no message any more."""
        with self._lock:
            for work in list(self.open):
                if not (isinstance(work, ShmWork) and work.comm is comm and work.call == call):
                    continue
                self.open.pop(work)
                for message in work.messages:
                    if message.sending or message.over:
                        continue
                    if message.begun or message in self._coming.values():
                        message.use(torch.empty_like(message.flat))  # nobody wants what is coming
                    else:
                        self._withdraw(message)
                    message.over = True

    def _record(self, src: int, header: tuple) -> None:
        channel, nbytes, start, said = header
        if said[2] == AGREE:
            return
        now = time.monotonic()
        self.trace.add(src, self.rank, nbytes, start, now, now, said[2], lane_of(channel))

    def wait(self, work: ShmWork) -> None:
        """Until all its messages are over; after a mismatch until its receives are. Sends still leave."""
        moved, since = -1, 0.0
        while work.waits():
            self.progress()
            if work.waits():
                now, seen = time.monotonic(), sum(m.moved for m in work.messages)
                if seen > moved:
                    moved, since = seen, now
                if now - since >= self.timeout:
                    self.open.pop(work, None)
                    raise RankMissing(f"rank {self.rank} waited {self.timeout:g} s for {work}")
                if not self.check_alive():
                    self._sleep(work, since + self.timeout - now)

    def _sleep(self, work: ShmWork, seconds: float) -> None:
        """Until something moves. Of several threads one listens to the bell, the others to it."""
        bell = self.rings.bells[self.rank]
        if self.shared:
            with self._news:
                if self._led and work.waits():
                    self._news.wait(seconds)
                if self._led or not work.waits():
                    return
                self._led = True
        bell.acquire(True, seconds)
        while bell.acquire(False):
            pass
        if self.shared:
            self.progress()
            with self._news:
                self._led = False
                self._news.notify_all()

    def check_alive(self) -> bool:
        """Fail what waits for ranks that have returned or died; True if there was any."""
        gone = [r for r in self._in if self.rings.flags[r]]
        if not gone:
            return False
        failed: list[tuple[Message, int]] = []  # and by whose end
        with self._lock:
            self.progress()
            for r in gone:
                sends = self._out[r][1]
                torn = self._coming.pop(r, None)  # its sender died in the midst of it
                failed += [(m, r) for m in (torn, *sends) if isinstance(m, Message) and not m.over]
                sends.clear()
            # of the others something has still to be read
            silent = {r for r in gone if not self._in[r].header()}
            for receive in [m for receives in self._receives.values() for m in receives]:
                rank = self._end_of(receive, silent)
                if rank is not None:
                    self._withdraw(receive)
                    failed.append((receive, rank))
            for message, rank in failed:
                message.finish(PeerLost(message.comm.local(rank), _WHY[self.rings.flags[rank]]))
        return bool(failed)

    def _end_of(self, receive: Message, silent: set[int]) -> int | None:
        """The rank whose end fails a receive, if one does. Of wildcard receives on a channel one hears of each death."""
        if receive.peer != ANY:
            return receive.peer if receive.peer in silent else None
        peers = set(receive.comm.ranks) - {self.rank}
        for rank in sorted(silent & peers):
            death = receive.comm.channel, rank
            if self.rings.flags[rank] == 2 and death not in self._heard_of:
                self._heard_of.add(death)
                return rank
        return max(peers) if peers and silent >= peers else None

    def close(self) -> None:
        """The program has returned: wait for all it posted (raises what went wrong in it), and say so."""
        while self.open:
            next(iter(self.open)).wait()
        left = [src for (src, _), queue in self._aside.items() if queue]
        if left:
            raise Deadlock(
                f"rank {self.rank} returned, but a message from rank {left[0]} was never received"
            )
        self.rings.flag(self.rank, 1)


class ShmComm(Comm):
    """A rank's view of the processes of one `launch`, or of some of them.

    `link` gives what a message between two processes of a laptop takes, by order of magnitude, or the given rate.
    """

    def __init__(self, endpoint: Endpoint, ranks: list[int], rank: int, channel: str = "main"):
        self.endpoint = endpoint
        self.ranks = ranks
        self.channel = channel
        self.members = tuple(ranks)
        self.rank = rank
        self.size = len(ranks)
        self.device = torch.device("cpu")
        self.compares_calls = endpoint.checked
        self._lanes: dict[int, ThreadLane] = {}

    def local(self, rank: int) -> int:
        """The rank here of a rank of the whole run."""
        return self.ranks.index(rank)

    def _post(self, ops: Sequence[Send | Recv], waited: bool = False) -> Work:
        return self.endpoint.post(self, ops)

    def _subgroup(self, ranks: list[int], name: str) -> Comm:
        return ShmComm(
            self.endpoint,
            [self.ranks[r] for r in ranks],
            ranks.index(self.rank),
            f"{self.channel}/{name}",
        )

    def _abandon(self, call: tuple[int, str]) -> None:
        self.endpoint.abandon(self, call)

    def stream(self, fn: Callable, *args, lane: int = 0) -> Work:
        check_job(fn)
        if lane not in self._lanes:
            self.endpoint.shared = True
            comm = ShmComm(self.endpoint, self.ranks, self.rank, f"{self.channel}/lane {lane}")
            self._lanes[lane] = ThreadLane(comm, f"lane {lane}", self.endpoint.open)
        return self._lanes[lane].submit(fn, args)

    def link(self, dst: int, src: int | None = None) -> Link:
        ends(self, dst, src)
        return Link(alpha=20e-6, beta=1 / min(4e9, self.endpoint.rings.rate or 4e9))
