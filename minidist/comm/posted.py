"""What a rank of a World has posted: operations, in batches, each batch the Work that the program waits on."""

from __future__ import annotations

from .base import ANY, PeerLost, Side, Work, describe
from .clock import Clock
from .program import line_of, located


class WorldWork(Work):
    """Finished when all its parts are; `time` is when. A batch of operations, or a job of a stream.

    Slots and no cycles once it is done: a ring over 1,024 ranks has thousands of these at a time, and
    the smaller they are, the flatter the cost of a message.
    """

    __slots__ = ("_unwaited", "channel", "clock", "error", "fiber", "ops", "parts", "posted", "ranks", "result",
                 "source", "time", "unstarted", "waiting", "what", "where")  # fmt: skip

    def __init__(self, clock: Clock, parts: int, ranks: list[int], what: str, unwaited: dict[WorldWork, None]):
        self.clock, self.parts, self.ranks, self.what, self._unwaited = clock, parts, ranks, what, unwaited
        self.time, self.error, self.result, self.source, self.waiting = 0.0, None, None, None, ()
        self.ops: list[Op] | tuple = ()
        self.fiber, self.posted, self.unstarted = clock.current, clock.current.time, parts
        self.channel = self.where = None  # where: the line that posted it; None: where the fiber stands

    def finish(self, time: float, error: BaseException | None = None) -> None:
        self.time = max(self.time, time)
        self.error = self.error or error
        self.parts -= 1
        self.clock.moved = True
        if self.parts <= 0:
            self.ops = ()
            for fiber in self.waiting:
                self.clock.wake(fiber, self.time)

    def done(self) -> bool:
        self.clock.check()
        if self.parts or self.time > self.clock.current.time:
            self.clock.poll(self, None if self.parts else self.time)
        return self.parts == 0 and self.time <= self.clock.current.time

    def wait(self):
        clock = self.clock
        clock.check()
        if self.parts > 0:
            self.waiting += (clock.current,)
            clock.block(self)
        clock.current.time = max(clock.current.time, self.time)
        self._unwaited.pop(self, None)
        if self.error is not None:
            raise self.error
        return self.result

    def posted_at(self) -> str:
        """The line of the program that posted what has not finished."""
        return f"; posted at {self.place()}" if any(not op.done for op in self.ops) else ""

    def place(self) -> str:
        """The line of the program that posted it."""
        return located(self.where[0].co_filename, self.where[1]) if self.where else line_of(self.fiber.thread)

    def __str__(self) -> str:
        return " and ".join(str(op) for op in self.ops if not op.done) or self.what


class Op:
    """One side of a transfer. `time`: when it came to the head of its stream."""

    __slots__ = ("done", "dst", "label", "payload", "sending", "src", "started", "time", "work", "x")

    def __init__(self, work: WorldWork, x, label: str | None, sending: bool, src: int, dst: int):
        self.work, self.x, self.label, self.sending = work, x, label, sending
        self.src, self.dst, self.time, self.payload = src, dst, 0.0, None
        self.done = self.started = False

    def __str__(self) -> str:
        if self.sending:
            side = f"send of {describe(self.x)} to rank {self.dst}"
        else:
            side = f"receive of {describe(self.x)} from {'any rank' if self.src == ANY else f'rank {self.src}'}"
        return f"{side} [{self.label}]" if self.label else side

    @property
    def owner(self) -> int:
        return self.src if self.sending else self.dst

    def says(self) -> Side:
        """What the header of a message would say of this side."""
        return Side(self.owner, tuple(self.x.shape), self.x.dtype, self.label, self.work.place())

    def lost(self, rank: int, why: str) -> PeerLost:
        return PeerLost(self.work.ranks.index(rank), why)

    def finish(self, time: float, error: BaseException | None = None) -> None:
        self.done = True
        self.work.finish(time, error)
