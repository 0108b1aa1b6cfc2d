"""A virtual clock: threads that pass one baton, in the order of their virtual time.

The problem: ranks in one process must run the same way every time, in an order that makes sense.
The idea: only the fiber that holds the baton runs, and it gives the baton up only when it must wait.
Whatever happens at a time (a transfer that may start) is an event; it is acted upon once no fiber can do anything
earlier. The baton goes directly from fiber to fiber, without a scheduler: one hand-over of threads for any n.

A run may stand inside a fiber of another one (a grader's World around a lesson's). Then an interrupt reaches the
outermost run only, in the main thread; each run tells the fiber that the next one stands in.

Invariant (conservative discrete-event simulation, Chandy and Misra 1979): when an event at time t is acted upon, every
runnable fiber is at t or later and no event is earlier. So a run is the same bit for bit every time. Each rank has its
own random numbers, which come with the baton.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from operator import itemgetter
from time import monotonic
from typing import Any

import torch

from .base import Deadlock, Mismatch
from .program import line_of

# ------------------------------------------------------------
# Where and how the system runs the fibers of a World: of threads that never run at once, one core is enough.


def core() -> set[int] | None:
    """The core that this thread is on, for all fibers, so that a hand-over does not wake another one. Only for fibers
    that compute nothing (meta tensors): a pinned thread's parallel loops would stay on that core. None on macOS."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    return {ctypes.CDLL(None).sched_getcpu()}


def stay(there: set[int] | None) -> None:
    """Keep this thread `there`, and let it wake without interrupting: a fiber that is handed the baton would
    otherwise start at once, find the interpreter's lock taken and sleep again. Halves the cost of a hand-over."""
    if not hasattr(os, "sched_getscheduler"):
        return
    if there is not None:
        os.sched_setaffinity(0, there)
    # chosen by the user; threads of one real-time class wait, too
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    # a container may forbid it: then hand-overs are only slower
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


# ------------------------------------------------------------
# torch's random generators belong to the process; the ranks of a World share it, so they take turns with them.


class Generators:
    """The state of all generators that a program on `device` draws from, for each rank: `turn(rank)` puts it in.

    A state is a tensor of 5 kB (a pair of tensors where there is a GPU), so a turn that changes nothing is free,
    and what draws no numbers need not have one. While entered, the process's own state is kept aside.
    """

    def __init__(self, device: torch.device, seeds: Iterable[int]):
        cpu = torch.default_generator
        devices: list[str | torch.device] = ["cpu"]
        # bound once: they run at every turn
        self._get: Callable[[], Any] = cpu.get_state
        self._set: Callable[[Any], Any] = cpu.set_state
        if device.type == "cuda":
            torch.cuda.init()
            gpu = torch.cuda.default_generators[device.index or 0]
            devices.append(gpu.device)
            self._get = lambda: (cpu.get_state(), gpu.get_state())
            self._set = lambda both: (cpu.set_state(both[0]), gpu.set_state(both[1]))
        self._states = [_fresh(devices, seed) for seed in seeds]
        self._rank: int | None = None  # whose turn it is; its place in `_states` is out of date

    def turn(self, rank: int) -> None:
        """From here on numbers are drawn for `rank`."""
        if rank != self._rank:
            if self._rank is not None:
                self._states[self._rank] = self._get()
            self._set(self._states[rank])
            self._rank = rank

    def __enter__(self) -> Generators:
        self._kept = self._get()
        return self

    def __exit__(self, *exception) -> None:
        self._set(self._kept)


def _fresh(devices: list, seed: int):
    """The state after seeding with `seed`."""
    states = [torch.Generator(device).manual_seed(seed).get_state() for device in devices]
    return states[0] if len(states) == 1 else tuple(states)


# ------------------------------------------------------------
# The clock itself: its fibers, what is to come, and who has the baton.


class Ended(BaseException):
    """Unwinds a fiber of a run that is over. Not an Exception: a program must not catch it by accident."""


class Fiber:
    """A thread of the run: a rank's program, or one of its lanes."""

    __slots__ = ("baton", "idle", "keeps_rng", "name", "over", "rank", "thread", "time", "waits")
    thread: Any  # a Thread, on which `Clock.spawn` notes two things more

    def __init__(self, rank: int, name: str, time: float):
        self.rank = rank
        self.name = name
        self.time = time
        self.baton = threading.Lock()
        self.baton.acquire()
        self.waits: Any = None  # what it waits for: anything whose str() says so
        self.idle = False  # a lane without a job: its waiting is no deadlock
        self.over = False
        self.keeps_rng = 0  # how deep it is in code that draws no random numbers


class Moment:
    """What is to come at a time: fibers that can run then, and events (order, act, args)."""

    __slots__ = ("events", "fibers")

    def __init__(self):
        self.events: list[tuple] = []
        self.fibers: deque[Fiber] = deque()


class Clock:
    """Runs fibers one at a time. `current` is the one that runs."""

    def __init__(self, n: int, seed_of: Callable[[int], int], device: torch.device):
        self.fibers: list[Fiber] = []
        self.current: Fiber
        self.ending = False
        self.error: BaseException | None = None
        self._moments: dict[float, Moment] = {}
        # theirs, a heap. Ranks in step share them: it stays small however many they are
        self._times: list[float] = []
        self._now = Moment()  # the one that the run has reached
        # whether its events are being acted upon: some of them may be still to come
        self._acting = False
        self._thread: Any = threading.current_thread()  # which waits for the run
        self._depth = getattr(self._thread, "depth", 0)  # how many runs it stands inside of
        self._finished = threading.Lock()
        self._finished.acquire()
        self._generators = Generators(device, map(seed_of, range(n)))
        self._core = core() if device.type == "meta" else None
        self._polling: dict[Fiber, float | None] = {}  # and when each looks again in any case
        # whether anything has finished since they looked; the time of the run
        self.moved, self.reached = False, 0.0

    def spawn(self, rank: int, name: str, body: Callable[[], None], time: float = 0.0) -> Fiber:
        """A new fiber, runnable at `time`."""
        fiber = Fiber(rank, name, time)
        fiber.thread = threading.Thread(
            target=self._run, args=(fiber, body), name=f"rank {rank} {name}", daemon=True
        )
        fiber.thread.depth, fiber.thread.closing = self._depth + 1, False
        self.fibers.append(fiber)
        self.wake(fiber, time)
        fiber.thread.start()
        return fiber

    def at(self, time: float, order: tuple, act: Callable, *args) -> None:
        """Call `act(time, *args)` once no fiber can do anything earlier; ties go by `order`."""
        (self._moments.get(time) or self._at(time)).events.append((order, act, args))

    def _at(self, time: float) -> Moment:
        """A moment at which nothing has been to come yet."""
        heappush(self._times, time)
        return self._moments.setdefault(time, Moment())

    def due(self) -> bool:
        """Whether anything else is to come at the time that the run has reached: an event, or another fiber's turn."""
        return self._acting or bool(self._now.events) or bool(self._now.fibers)

    def wake(self, fiber: Fiber, time: float) -> None:
        """Make a blocked fiber runnable, not before `time`."""
        if fiber.time > time:
            time = fiber.time
        else:
            fiber.time = time
        (self._moments.get(time) or self._at(time)).fibers.append(fiber)

    def block(self, waits) -> None:
        """The running fiber gives up the baton until another wakes it."""
        me = self.current
        me.waits = waits
        if self.ending:
            raise Ended
        following = self._next()
        if following is not me:
            if following is not None:
                following.baton.release()
            me.baton.acquire()
            if self.ending:
                raise Ended
            self.current = me
            if not me.keeps_rng:
                self._generators.turn(me.rank)
        me.waits = None

    def poll(self, waits, until: float | None = None) -> None:
        """The running fiber looks again at `until`, or when the next thing has finished; never, if nothing will."""
        self._polling[self.current] = until
        self.block(waits)

    def _polls(self) -> None:
        """Wake the fibers that poll, if there is something new to see."""
        due = min((t for t in self._polling.values() if t is not None), default=None)
        if self.moved:
            woken, time = list(self._polling), self.reached
        elif due is not None and (not self._times or due <= self._times[0]):
            woken, time = [f for f, t in self._polling.items() if t == due], due
        else:
            return
        self.moved = False
        for fiber in woken:
            del self._polling[fiber]
            self.wake(fiber, time)

    def check(self) -> None:
        """End the running fiber if the run is over."""
        if self.ending:
            raise Ended

    def fail(self, error: BaseException) -> None:
        """The run is over because of `error`; the first one counts."""
        if not self.ending:
            self.error, self.ending = error, True
            self._finished.release()

    def __enter__(self) -> Clock:
        self._generators.__enter__()
        return self

    def run(self) -> None:
        """Give the baton to the first fiber and wait until all have ended."""
        first = self._next()
        if first is not None:
            first.baton.release()
            # A signal that comes just before a wait is seen after it; and a fiber of another run can be ended only
            # between two lines. So nobody waits for ever.
            while not self._finished.acquire(timeout=0.02 if self._depth else 0.2):
                pass

    def __exit__(self, *exception) -> None:
        """Nothing is left running, also after KeyboardInterrupt."""
        self.ending = self._thread.closing = True
        # An interrupt must be over in a second, whatever the fibers do. A run inside gives up before the one around it.
        interrupted = exception[0] is not None
        patience = 0.6 / 2**self._depth if interrupted else 5.0
        try:
            for fiber in self.fibers:
                patience = self._end(fiber, patience)
        finally:
            self._thread.closing = False
            self._generators.__exit__()

    def _end(self, fiber: Fiber, patience: float) -> float:
        """End a fiber; the seconds that may still be spent on fibers that do not end at once."""
        thread = fiber.thread
        # the interrupt came before it was started; while that goes on, join raises
        if not thread._started.wait(0.1):
            return patience
        if thread.is_alive() and fiber.baton.locked():
            fiber.baton.release()
        thread.join(0.05)
        # it is computing (Ctrl-C): stop it at its next line
        while thread.is_alive() and patience > 0:
            if not thread.closing:  # else it is ending a run of its own, and must not be disturbed
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread.ident), ctypes.py_object(Ended)
                )
            start = monotonic()
            thread.join(0.05)
            patience -= monotonic() - start
        return patience

    def _run(self, fiber: Fiber, body: Callable[[], None]) -> None:
        stay(self._core)
        try:
            fiber.baton.acquire()
            self.check()
            self._resume(fiber)
            body()
        except Ended:
            return
        except BaseException as error:  # a defect of ours: bodies catch what the program raises
            self.fail(error)
        fiber.over = True
        if not self.ending:
            following = self._next()
            if following is not None:
                following.baton.release()

    def _resume(self, me: Fiber) -> None:
        self.current = me
        if not me.keeps_rng:
            self._generators.turn(me.rank)

    def skip_rng_swap(self, more: int) -> None:
        """The running fiber enters (1) or leaves (-1) code that draws no random numbers."""
        me = self.current
        me.keeps_rng += more
        if not me.keeps_rng and not self.ending:
            self._generators.turn(me.rank)

    def _next(self) -> Fiber | None:
        """The fiber to run next, after all events that come before it; None ends the run."""
        while self._times or self._polling:
            if self._polling:
                self._polls()
                if not self._times:
                    break
            self.reached = time = self._times[0]
            self._now = now = self._moments[time]
            if now.fibers:
                return now.fibers.popleft()
            if now.events:
                events, now.events = sorted(now.events, key=itemgetter(0)), []
                self._acting = True
                try:
                    for _, act, args in events:
                        act(time, *args)
                # of no rank: not to be raised where the baton happens to be
                except Exception as error:
                    self.fail(error)
                    return None
                self._acting = False
            else:
                heappop(self._times)
                del self._moments[time]
        stuck = [f for f in self.fibers if not f.over and not f.idle]
        if stuck:
            self.fail((_disagreement(stuck) or Deadlock)(self._report(stuck)))
        else:
            self._finished.release()
        return None

    def _report(self, stuck: list[Fiber]) -> str:
        ended = sorted(
            {f.rank for f in self.fibers if f.over and f.name == "main"} - {f.rank for f in stuck}
        )
        rows = [
            f"no rank can go on ({len(stuck)} wait for each other):"
            if len(stuck) > 1
            else "one rank cannot end:"
        ]
        for f in sorted(stuck, key=lambda f: (f.rank, f.name)):
            who = f"rank {f.rank}" + ("" if f.name == "main" else f", {f.name},")
            call = getattr(f.waits, "call", None)
            rows += (
                [f"  rank {f.rank} is in {call[1]}, collective {call[0]} of its Comm:"]
                if call
                else []
            )
            place = line_of(f.thread) or "the end of its program" + f.waits.posted_at()
            rows.append(f"  {who} waits for {f.waits}\n    at {place}")
            rows += [f"    {line}" for line in f.waits.queued()]
        if ended:
            rows.append(f"  ended already: rank {', '.join(map(str, ended))}")
        return "\n".join(rows)


def _disagreement(stuck: list[Fiber]) -> type[Mismatch] | None:
    """Whether ranks wait for each other because they say different things of one collective."""
    said = defaultdict(set)
    for fiber in stuck:
        if (call := getattr(fiber.waits, "call", None)) is not None:
            said[fiber.waits.stream.channel, call[0]].add(call[1])
    return Mismatch if any(len(words) > 1 for words in said.values()) else None
