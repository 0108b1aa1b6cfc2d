"""The wires of a World: which messages match, when they start, when they arrive.

What a rank posts is there for its other side at once. From one rank to another, sends and receives match in the
order in which they were posted, and nothing else orders them (MPI 4.1, section 3.5: messages do not overtake). A
wildcard receive takes the earliest message that no receive before it takes; named ones behind it match after it.
With `ordered`, a rank's operations on one channel start batch by batch, each when the former is finished, as on an
NCCL stream without groups; those of one batch start together.

A transfer is ready once both sides are there (rendezvous), or once the sender is (eager). It starts when the sender's
port out, the receiver's port in and every shared wire between them are free, in the order of readiness, then of
posting; the ports are busy for N·β seconds, shared wires for N times their own β, and it arrives α later. The sender
is done when its port is free again, the receiver on arrival.

Cost of a message of N bytes on free wires: α + N·β (Hockney 1994). A wildcard receive matches only when
no rank could still send earlier, which is when the clock acts on its event.

Millions of messages pass here: what each of them does is written out where it happens, as far as it is short, since
a call costs more than the little that it would do.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from .base import (
    ANY,
    Call,
    Comm,
    Link,
    Mismatch,
    PeerLost,
    Recv,
    Send,
    Side,
    Work,
    check_job,
    describe,
    mismatch,
    order,
)
from .clock import Clock, Ended, Fiber
from .cluster import Cluster, ends
from .program import caller, line_of, located
from .trace import Trace, lane_of

# ------------------------------------------------------------
# What a rank of a World has posted: operations, in batches, each batch the Work that the program waits on.


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
    ops: Sequence[Op]
    error: BaseException | None
    heard: int | None  # the World's rank that a receive matched
    where: tuple[str, int] | None  # the line that posted it; None: where the fiber stands
    following: WorldWork | None  # the batch that is to start after this one
    call: Call  # see Comm.call
    turn: int  # of the batches of its stream
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
        self.ops = ()
        self.waiting: tuple[Fiber, ...] = ()
        self.fiber = clock.current
        self.posted, self.time = self.fiber.time, 0.0
        self.error = self.heard = self.where = self.following = self.call = None

    @property
    def source(self) -> int | None:  # type: ignore[override]  # found when it is asked for
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
        return located(*self.where) if self.where else line_of(self.fiber.thread)

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
    time: float

    def __init__(self, work: WorldWork, x, label: str | None, sending: bool, pair):
        self.work = work
        self.x = x
        self.label = label
        self.sending = sending
        self.pair = pair
        self.done = False
        self.payload: torch.Tensor | None = None

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


# ------------------------------------------------------------
# The wires of a World's cluster: when each is free again, and which of them each pair of ranks occupies.


class Wire:
    """`free`: when it is free again."""

    __slots__ = ("free",)

    def __init__(self):
        self.free = 0.0


class Fifo:
    """First in, first out. `first` is None if it is empty. Mostly one waits, which needs no list."""

    __slots__ = ("_later", "first")

    def __init__(self):
        self.first, self._later = None, None

    def put(self, one) -> None:
        if self.first is None:
            self.first = one
        elif self._later is None:
            self._later = deque((one,))
        else:
            self._later.append(one)

    def take(self):
        """The first, which leaves."""
        one, later = self.first, self._later
        self.first = later.popleft() if later else None
        return one

    def keep(self, those: Iterable) -> None:
        """Hold these and no others."""
        self.first, self._later = None, None
        for one in those:
            self.put(one)

    def drop(self, gone) -> None:
        """Hold it no more, wherever it stands."""
        self.keep([one for one in self if one is not gone])

    def __iter__(self) -> Iterator:
        return iter(() if self.first is None else (self.first, *(self._later or ())))


class Pair(Fifo):
    """The operations from one rank to another that wait for their other side: sends or receives, never both.

    And their `Route` with its wires: N bytes hold both ports, the sender's `out` and the receiver's `into`, for
    N·beta, and each `shared` wire for N times its own seconds a byte.
    """

    __slots__ = ("alpha", "beta", "dst", "into", "out", "shared", "src")

    def __init__(self, src: int, dst: int, alpha: float, beta: float, wires: list):
        super().__init__()
        self.src, self.dst = src, dst
        self.alpha, self.beta = alpha, beta
        (self.out, _), (self.into, _), *shared = wires
        self.shared = tuple(shared)

    def offer(self) -> Op | None:
        """The oldest send that waits."""
        return self.first if self.first is not None and self.first.sending else None


class Routes:
    """Makes a `Pair` for each two ranks that talk on a channel. Pairs share the cluster's wires."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.wires: dict[tuple, Wire] = defaultdict(Wire)
        # equal times are one object: fewer to fetch for each message
        self._equal: dict[float, float] = {}

    def __call__(self, src: int, dst: int) -> Pair:
        alpha, beta, wires = self.cluster.route(src, dst)
        alpha, beta = self._equal.setdefault(alpha, alpha), self._equal.setdefault(beta, beta)
        return Pair(src, dst, alpha, beta, [(self.wires[name], each) for name, each in wires])


def starts(pair: Pair, ready: float) -> float:
    """When what is `ready` finds all its wires free."""
    if (out := pair.out.free) > ready:
        ready = out
    if (into := pair.into.free) > ready:
        ready = into
    if pair.shared:
        ready = max(ready, *(wire.free for wire, _ in pair.shared))
    return ready


def occupy(pair: Pair, nbytes: int, start: float, factor: float = 1.0) -> float:
    """Hold the wires from `start` on, `factor` times as long as free wires would be; when the ports are free."""
    pair.out.free = pair.into.free = sent = start + nbytes * pair.beta * factor
    for wire, beta in pair.shared:
        wire.free = start + nbytes * beta * factor
    return sent


# ------------------------------------------------------------
# What keeps messages apart: a `Channel` for each group and each lane, on it a `Stream` for each rank, and a
# `Pair` for each two ranks that talk.
#
# Thousands of ranks take turns, so what one of them needs is out of the processor's cache when its turn comes. Hence
# few and small objects, found through the rank's own stream: a message costs with 1,024 ranks what it costs with 8.


class Channel:
    """The messages of one group, or of one lane; its operations wait here. Ranks here are ranks of the World."""

    def __init__(self, name: str, routes: Routes):
        self.lane, self._routes = lane_of(name), routes
        self.streams: dict[int, Stream] = {}
        self.pairs: dict[tuple[int, int], Pair] = {}  # by (src, dst)
        # by dst: wildcard receives, and named ones behind a wildcard
        self.anys: dict[int, Fifo] = defaultdict(Fifo)

    def stream(self, rank: int, ranks: Sequence[int]) -> Stream:
        """That of `rank`, in the group `ranks`."""
        return self.streams.setdefault(rank, Stream(self, rank, ranks))

    def pair(self, src: int, dst: int) -> Pair:
        found = self.pairs.get((src, dst))
        if found is None:
            found = self.pairs[src, dst] = self._routes(src, dst)
        return found

    def offers(self, dst: int) -> list[Op]:
        """The oldest send of each rank to `dst`, in the order of their times."""
        heads = [
            offer
            for pair in self.pairs.values()
            if pair.dst == dst and (offer := pair.offer()) is not None
        ]
        return sorted(heads, key=lambda op: (op.time, op.pair.src))

    def queues(self) -> list[Fifo]:
        """Wherever operations wait."""
        return [*self.pairs.values(), *self.anys.values()]


class Stream(Fifo):
    """Where one rank posts on one channel. In an ordered World it holds the batches (each a WorldWork) that have not
    finished, of which the first has been started.

    `ranks`: the group's.  `pairs`: by d those to rank d of the group, by ~s those from rank s.
    """

    __slots__ = ("channel", "pairs", "rank", "ranks", "turn")

    def __init__(self, channel: Channel, rank: int, ranks: Sequence[int]):
        super().__init__()
        self.channel = channel
        self.rank = rank
        self.ranks = ranks
        self.pairs = _Pairs(channel, rank, ranks)
        self.turn = 0  # how many batches the rank has posted


class _Pairs(dict):
    """Those of a stream, looked up in the channel when they are first asked for."""

    __slots__ = ("_channel", "_rank", "_ranks")

    def __init__(self, channel: Channel, rank: int, ranks: Sequence[int]):
        self._channel = channel
        self._rank = rank
        self._ranks = ranks

    def __missing__(self, peer: int) -> Pair:
        ends = (self._rank, self._ranks[peer]) if peer >= 0 else (self._ranks[~peer], self._rank)
        return self.setdefault(peer, self._channel.pair(*ends))


# ------------------------------------------------------------
# The wires themselves: what matches, and when it starts.


class Wires:
    """All messages of a run. Ranks here are ranks of the World."""

    def __init__(
        self,
        clock: Clock,
        trace: Trace,
        n: int,
        cluster: Cluster,
        rendezvous: bool,
        ordered: bool,
        unwaited: Sequence[dict[WorldWork, None]],
    ):
        self.clock = clock
        self.trace = trace
        self.cluster = cluster
        self.rendezvous = rendezvous
        self.ordered = ordered
        self._unwaited = unwaited  # by rank: what it has posted and has not waited for
        self._routes = Routes(cluster)
        # messages of each rank, which jitter counts
        self._sent = [0] * n if cluster.sigma else None
        self._channels: dict[str, Channel] = {}
        self._streams = [0] * n  # how many each rank has
        self._dead: dict[int, str] = {}
        self._told: set[tuple[Stream, int]] = set()  # deaths that a wildcard receive has heard of

    def stream(self, name: str, ranks: Sequence[int], rank: int) -> Stream:
        """That of `rank`, in the group `ranks`, on the channel of that name."""
        channel = self._channels.setdefault(name, Channel(name, self._routes))
        self._streams[rank] += rank not in channel.streams
        return channel.stream(rank, ranks)

    def post(
        self, stream: Stream, ops: Sequence[Send | Recv], work: WorldWork, after: WorldWork | None
    ) -> None:
        """Post `ops` of a stream's rank; they start when `after` has."""
        posted, pairs = [], stream.pairs
        for op in ops:
            if isinstance(op, Send):
                posted.append(Op(work, op.x, op.label, True, pairs[op.dst]))
            else:
                posted.append(
                    Op(work, op.x, op.label, False, None if op.src == ANY else pairs[~op.src])
                )
        work.ops = posted
        if not posted:
            return
        work.turn = stream.turn = stream.turn + 1
        if self.ordered:
            before = stream.first
            stream.put(work)
            if before is not None:
                return
        elif after is not None and after.parts > 0:
            after.following = work
            return
        self._activate(work, work.posted)

    def _activate(self, work: WorldWork, time: float) -> None:
        plain = self.rendezvous and not self._dead and not work.stream.channel.anys
        for op in work.ops:
            op.time = time
            if plain and op.pair is not None:
                self._meet(op)
            else:
                self._start_op(op, time)

    def _start_op(self, op: Op, time: float) -> None:
        """What need not meet anyone, or cannot, or not yet."""
        stream = op.work.stream
        if self._dead and (error := self._forsaken(op)):
            self._over(op, time, time, error)
        elif op.sending:
            if self.rendezvous:
                self._meet(op)
            else:
                self._ready(op, None, time)
        elif op.pair is None:
            stream.channel.anys[stream.rank].put(op)
            self._listen(stream.rank, stream.channel)
        elif (
            stream.rank in stream.channel.anys
            and stream.channel.anys[stream.rank].first is not None
        ):
            stream.channel.anys[stream.rank].put(op)  # a wildcard receive comes first
        else:
            self._meet(op)

    def _meet(self, op: Op) -> None:
        """Match with the oldest of the other side; wait for it if there is none."""
        pair, sending = op.pair, op.sending
        other = pair.first
        if other is None or other.sending is sending:
            pair.put(op)
            if sending and (channel := op.work.stream.channel).anys:
                self._listen(pair.dst, channel)
        elif op.work.call is not other.work.call and order(op.work.call, other.work.call):
            self._left(op, other)
        elif sending:
            self._match(op, pair.take())
        else:
            self._match(pair.take(), op)

    def _left(self, op: Op, other: Op) -> None:
        """Two sides of different collectives, since one rank has left the earlier one, which failed there: a message of
        that is dropped, a receive of it fails; the later side stays for its own other side."""
        earlier = op if order(op.work.call, other.work.call) < 0 else other
        if earlier is other:
            op.pair.take()
        send, receive = (op, other) if op.sending else (other, op)
        time = max(op.time, other.time)
        self._over(earlier, time, time, None if earlier.sending else self._unlike(send, receive))
        if earlier is other:
            self._meet(op)

    def _listen(self, dst: int, channel: Channel) -> None:
        """Let the oldest wildcard receive of `dst` choose, at the time of the earliest message there is."""
        offers, receive = channel.offers(dst), channel.anys[dst].first
        if offers and receive:
            self.clock.at(max(receive.time, offers[0].time), (0, dst), self._choose, dst, channel)

    def _choose(self, now: float, dst: int, channel: Channel) -> None:
        offers, anys = channel.offers(dst), channel.anys[dst]
        if anys.first and offers and offers[0].time <= now:
            send, receive = offers[0].pair.take(), anys.take()
            receive.pair = send.pair
            self._match(send, receive)
            self._release(now, dst, channel)

    def _release(self, now: float, dst: int, channel: Channel) -> None:
        """The first wildcard receive of `dst` is over: the named ones behind it may match, then the next wildcard."""
        anys = channel.anys[dst]
        while anys.first is not None and anys.first.pair is not None:
            op = anys.take()
            op.time = max(op.time, now)
            if self._dead and (error := self._forsaken(op)):
                self._over(op, op.time, op.time, error)
            else:
                self._meet(op)
        self._listen(dst, channel)

    def _match(self, send: Op, receive: Op) -> None:
        receive.work.heard = send.pair.src
        x, y = send.x, receive.x
        time = send.time if send.time > receive.time else receive.time
        if (
            x.dtype is not y.dtype
            or x.shape != y.shape
            or send.label != receive.label
            or x.is_meta is not y.is_meta
            or send.work.call != receive.work.call
        ):
            error = self._unlike(send, receive)
            self._over(send, time, time, error)
            self._over(receive, time, time, error)
        elif send.payload is not None:  # it has left already
            if not y.is_meta:
                _copy(send.payload, y)
            self._over(receive, time, time)
        else:
            self._ready(send, receive, time)

    @staticmethod
    def _unlike(send: Op, receive: Op) -> Mismatch:
        return Mismatch(
            mismatch(send.says(), receive.says())
            or f"rank {send.owner} sends a {send.x.device} tensor, "
            f"but rank {receive.owner} receives into a {receive.x.device} one"
        )

    def _ready(self, send: Op, receive: Op | None, ready: float) -> None:
        """Both sides are there at time `ready`. What nothing can come before is done at once, else the clock calls."""
        clock, start = self.clock, starts(send.pair, ready)
        if (start <= clock.reached and not clock.due()) or self._apart(send, receive):
            self._transfer(send, receive, start)
        else:
            turn = send.work.turn if receive is None else max(send.work.turn, receive.work.turn)
            order = (1, ready, turn, send.pair.src, send.pair.dst)
            clock.at(start, order, self._start, order, send, receive)

    def _apart(self, send: Op, receive: Op | None) -> bool:
        """Whether nothing else can want these wires before the transfer is over, so that it need not wait for the
        clock: both ranks have one stream, on it one message each way, and do nothing else until it is there."""
        if receive is None or send.work.unwaited is not None or receive.work.unwaited is not None:
            return False
        pair = send.pair
        streams = self._streams
        unwaited = self._unwaited
        if pair.shared or unwaited[pair.src] or unwaited[pair.dst]:
            return False
        return streams[pair.src] == 1 == streams[pair.dst]

    def _start(self, now: float, order: tuple, send: Op, receive: Op | None) -> None:
        """Start the transfer if all its wires are free; else look again when they may be."""
        start = starts(send.pair, now)
        if start > now:
            self.clock.at(start, order, self._start, order, send, receive)
        else:
            self._transfer(send, receive, now)

    def _transfer(self, send: Op, receive: Op | None, start: float) -> None:
        pair = send.pair
        nbytes = send.x.nbytes
        factor = 1.0
        src = pair.src
        if self._sent:
            factor = self.cluster.noise("message", src, self._sent[src])
            self._sent[src] += 1
        sent = occupy(pair, nbytes, start, factor)
        arrived = sent + pair.alpha * factor
        self.trace.add(
            src, pair.dst, nbytes, start, sent, arrived, send.label, send.work.stream.channel.lane
        )
        if receive is None:
            with _unseen():
                send.payload, send.time = send.x.detach().clone(), arrived
            self._meet(send)  # before the next one of its stream, which may be as quick, can
            self._over(send, start, sent)
        else:
            if not receive.x.is_meta:
                _copy(send.x, receive.x)
            self._over(send, start, sent)
            self._over(receive, start, arrived)

    def _over(
        self, op: Op, started: float, ended: float, error: BaseException | None = None
    ) -> None:
        """What follows a batch may start once all operations of it have: with `ordered`, the next of its stream."""
        if op.done:
            return
        op.done, work = True, op.work
        if not work.finish(ended, error):
            return
        following, stream = work.following, work.stream
        if following is not None and stream.rank not in self._dead:
            self._activate(following, max(started, following.posted))
        if self.ordered:
            if stream.first is work:  # else its rank is dead
                stream.take()
                if (following := stream.first) is not None:
                    self._activate(following, max(started, following.posted))

    def abandon(self, stream: Stream, work: WorldWork) -> None:
        """A rank gives up what it posted: its receives take no message any more, its sends may still leave."""
        now, waiting = self.clock.current.time, list(stream)[1:]
        if work in waiting:  # it has not been started
            stream.drop(work)
            return
        for op in [op for op in work.ops if not op.done and not op.sending]:
            op.pair.drop(op)
            op.x = torch.empty_like(op.x)  # for what is on its way already
            self._over(op, now, now)

    def unread(self) -> list[tuple[int, int]]:
        """(src, dst) of messages that left (eager) and that nobody has received."""
        return sorted(
            {key for c in self._channels.values() for key, pair in c.pairs.items() if pair.offer()}
        )

    def _forsaken(self, op: Op) -> PeerLost | None:
        """What to raise if the other end is dead and has left no message. A wildcard receive hears of each death once,
        and fails always when all are dead."""
        stream, peer = op.work.stream, op.peer
        peers = [r for r in stream.ranks if r != stream.rank] if peer == ANY else [peer]
        gone = [r for r in peers if r in self._dead]
        if not op.sending and any(stream.channel.pair(r, stream.rank).offer() for r in gone):
            return None
        news = [r for r in gone if (stream, r) not in self._told] or (gone if gone == peers else [])
        if news and peer == ANY:
            self._told.add((stream, news[0]))
        return op.lost(news[0], self._dead[news[0]]) if news else None

    def lost(self, rank: int, why: str) -> None:
        """Rank `rank` is dead: whoever waits for it, now or later, gets PeerLost."""
        now = self.clock.current.time
        self._dead[rank] = why
        for channel in list(self._channels.values()):
            if rank in channel.streams:
                channel.streams[rank].keep(())
            for queue in channel.queues():
                queue.keep([op for op in queue if op.owner != rank or op.payload is not None])
                for op in queue:
                    if op.payload is None and (error := self._forsaken(op)):
                        queue.drop(op)
                        self._over(op, now, now, error)
            for dst in list(channel.anys):
                self._release(now, dst, channel)


# no meter charges what wires do to the rank in whose thread it happens
_unseen = torch._C._DisableTorchDispatch


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    with _unseen():
        target.detach().copy_(source.detach())


# ------------------------------------------------------------
# A rank at its end of the wires: the Comm that a program is handed, and its lanes.


class WorldComm(Comm):
    """A rank's view of a World, or of a part of it; `ranks` are the group's ranks in the World.

    run: what the ranks of one `World.run` share: its clock, wires, meter and open operations.
    """

    def __init__(self, run, ranks: Sequence[int], rank: int, channel: str):
        self._run = run
        self._ranks = ranks
        self._name = channel
        self.members = tuple(ranks)
        self.rank = rank
        self.size = len(ranks)
        self.device = run.world.device
        self.host = run.host
        self._stream, self._open = (
            run.wires.stream(channel, ranks, ranks[rank]),
            run.open[ranks[rank]],
        )
        self._lanes: dict[int, Lane] = {}
        self._alike = run.alike.setdefault(channel, {})
        self.without_rng_swap = run.without_rng_swap

    def _post_after(self, ops: Sequence[Send | Recv], after: Any) -> Work:  # a WorldWork
        return self._post(ops, after=after)

    def _post(
        self, ops: Sequence[Send | Recv], waited: bool = False, after: WorldWork | None = None
    ) -> Work:
        run, stream = self._run, self._stream
        clock = run.clock
        if clock.ending:
            raise Ended
        if waited:
            work = WorldWork(clock, len(ops), None, stream)
        else:
            work = WorldWork(clock, len(ops), self._open, stream)
            work.where = caller()  # while it waits, the fiber itself tells
        work.call = self.call
        run.wires.post(stream, ops, work, after)
        return work

    def _subgroup(self, ranks: list[int], name: str) -> Comm:
        return WorldComm(
            self._run,
            [self._ranks[r] for r in ranks],
            ranks.index(self.rank),
            f"{self._name}/{name}",
        )

    def _abandon(self, call: tuple[int, str]) -> None:
        for work in list(self._open):
            if work.stream is self._stream and work.call == call:
                del self._open[work]
                self._run.wires.abandon(self._stream, work)

    def stream(self, fn: Callable, *args, lane: int = 0) -> Work:
        check_job(fn)
        self._run.clock.check()
        if lane not in self._lanes:
            channel = f"{self._name}/lane {lane}"
            comm = WorldComm(self._run, self._ranks, self.rank, channel)
            self._lanes[lane] = Lane(self._run, self._ranks[self.rank], comm, f"lane {lane}")
        return self._lanes[lane].post_job(fn, args)

    def link(self, dst: int, src: int | None = None) -> Link:
        src, dst = ends(self, dst, src)
        return self._run.world.cluster.link(self._ranks[src], self._ranks[dst])

    def now(self) -> float:
        self._run.clock.check()
        return self._run.clock.current.time


class WithoutRngSwap:
    """`Comm.without_rng_swap` in a World."""

    def __init__(self, clock: Clock):
        self._clock = clock

    def __enter__(self) -> None:
        self._clock.skip_rng_swap(1)

    def __exit__(self, *exception) -> None:
        self._clock.skip_rng_swap(-1)


class Lane:
    """A fiber that does a rank's `stream` jobs one after the other."""

    def __init__(self, run, rank: int, comm: WorldComm, name: str):
        self.run = run
        self.rank = rank
        self.comm = comm
        self.jobs: deque = deque()
        self.fiber = run.clock.spawn(rank, name, self._body, run.clock.current.time)

    def post_job(self, fn: Callable, args: tuple) -> WorldWork:
        work = Job(
            self.run.clock,
            self.run.open[self.rank],
            f"a stream job, {getattr(fn, '__name__', 'job')}",
        )
        self.jobs.append((fn, args, work))
        if self.fiber.idle:
            self.fiber.idle = False
            self.run.clock.wake(self.fiber, self.run.clock.current.time)
        return work

    def _body(self) -> None:
        while True:
            while not self.jobs:
                self.fiber.idle = True
                self.run.clock.block("its next job")
            fn, args, work = self.jobs.popleft()
            # its rank may have computed on, and put it later
            self.fiber.time = max(self.fiber.time, work.posted)
            error = None
            try:
                with self.run.charged():
                    work.result = fn(self.comm, *args)
            except Ended:
                raise
            except BaseException as caught:
                error = caught
            work.finish(self.fiber.time, error)
