"""What a rank of a World has posted: operations, in batches, each batch the Work that the program waits on."""

from __future__ import annotations

from ..base import ANY, PeerLost, Work, describe
from ..header import Side
from ..program import line_of, located
from .clock import Clock, Ended


class WorldWork(Work):
    """Finished when all its parts are; `time` is when. A batch of operations, or a `Job`.

    Slots and no cycles once it is done: a ring over 1,024 ranks has thousands of these at a time, and
    the smaller they are, the flatter the cost of a message.
    """

    __slots__ = (
        "call",
        "clock",
        "error",
        "fiber",
        "following",
        "heard",
        "ops",
        "parts",
        "posted",
        "stream",
        "time",
        "turn",
        "unwaited",
        "waiting",
        "where",
    )
    what, result = "", None

    def __init__(
        self, clock: Clock, parts: int, unwaited: dict[WorldWork, None] | None, stream=None
    ):
        self.clock = clock
        self.parts = parts
        self.unwaited = unwaited
        self.stream = stream
        # it need not be waited for at once: keep it. None: its fiber does nothing else
        if unwaited is not None:
            unwaited[self] = None
        self.ops = self.waiting = ()
        self.fiber = fiber = clock.current
        self.posted, self.time = fiber.time, 0.0
        # heard: the World's rank that a receive matched.  where: the line that posted it; None: where the fiber stands
        # following: the batch that is to start after this one.  call: see Comm.call
        self.error = self.heard = self.where = self.following = self.call = None

    @property
    def source(self) -> int | None:
        return None if self.heard is None else self.stream.ranks.index(self.heard)

    def finish(self, time: float, error: BaseException | None = None) -> bool:
        """A part is over at `time`; whether it was the last one."""
        if time > self.time:
            self.time = time
        if error is not None and self.error is None:
            self.error = error
        self.parts -= 1
        self.clock.moved = True
        if self.parts > 0:
            return False
        self.ops = ()
        for fiber in self.waiting:
            self.clock.wake(fiber, self.time)
        return True

    def done(self) -> bool:
        self.clock.check()
        if self.parts or self.time > self.clock.current.time:
            self.clock.poll(self, None if self.parts else self.time)
        return self.parts == 0 and self.time <= self.clock.current.time

    def wait(self):
        clock = self.clock
        current = clock.current
        if self.parts > 0:
            if clock.ending:
                raise Ended
            self.waiting += (current,)
            clock.block(self)
        elif clock.ending:
            raise Ended
        if self.time > current.time:
            current.time = self.time
        if self.unwaited is not None:
            self.unwaited.pop(self, None)
        if self.error is not None:
            raise self.error
        return self.result

    def posted_at(self) -> str:
        """The line of the program that posted what has not finished."""
        return f"; posted at {self.place()}" if any(not op.done for op in self.ops) else ""

    def place(self) -> str:
        """The line of the program that posted it."""
        return (
            located(self.where[0].co_filename, self.where[1])
            if self.where
            else line_of(self.fiber.thread)
        )

    def queued(self) -> list[str]:
        """What this rank has posted on the same stream of an ordered World, and why it has not started."""
        batches = list(self.stream or ())
        return [
            f"posted, but not started before the {batches[0]} is over: {work}"
            for work in batches[1:]
        ]

    def __str__(self) -> str:
        return " and ".join(str(op) for op in self.ops if not op.done) or self.what


class Job(WorldWork):
    """A job of a stream: `what` it is, and its `result`."""

    __slots__ = ("result", "what")

    def __init__(self, clock: Clock, unwaited: dict[WorldWork, None], what: str):
        super().__init__(clock, 1, unwaited)
        self.what, self.result = what, None


class Op:
    """One side of a transfer. `time`: when it was posted, or later: when its batch was started in an ordered World, or
    the wildcard receive before it was over. `pair`: None while any source will do."""

    __slots__ = ("done", "label", "pair", "payload", "sending", "time", "work", "x")

    def __init__(self, work: WorldWork, x, label: str | None, sending: bool, pair):
        self.work = work
        self.x = x
        self.label = label
        self.sending = sending
        self.pair = pair
        self.done, self.payload = False, None

    def __str__(self) -> str:
        peer = "any rank" if self.pair is None else f"rank {self.peer}"
        verb, to = ("send", "to") if self.sending else ("receive", "from")
        return f"{verb} of {describe(self.x)} {to} {peer}" + (
            f" [{self.label}]" if self.label else ""
        )

    @property
    def owner(self) -> int:
        return self.work.stream.rank

    @property
    def peer(self) -> int:
        """The other side's rank, or ANY."""
        return ANY if self.pair is None else self.pair.dst if self.sending else self.pair.src

    def says(self) -> Side:
        """What the header of a message would say of this side."""
        return Side(
            self.owner,
            tuple(self.x.shape),
            self.x.dtype,
            self.label,
            self.work.call,
            self.work.place(),
        )

    def lost(self, rank: int, why: str) -> PeerLost:
        return PeerLost(self.work.stream.ranks.index(rank), why)
