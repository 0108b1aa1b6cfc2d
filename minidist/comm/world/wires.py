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

from collections.abc import Sequence

import torch

from ..base import ANY, Mismatch, PeerLost, Recv, Send
from ..cluster import Cluster
from ..header import mismatch, order
from ..trace import Trace
from .channel import Channel, Stream
from .clock import Clock
from .posted import Op, WorldWork
from .routes import Routes, occupy, starts


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
                self._begin(op, time)

    def _begin(self, op: Op, time: float) -> None:
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
            stream.keep([other for other in stream if other is not work])
            return
        for op in [op for op in work.ops if not op.done and not op.sending]:
            op.pair.keep([other for other in op.pair if other is not op])
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
                        queue.keep([other for other in queue if other is not op])
                        self._over(op, now, now, error)
            for dst in list(channel.anys):
                self._release(now, dst, channel)


# no meter charges what wires do to the rank in whose thread it happens
_unseen = torch._C._DisableTorchDispatch


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    with _unseen():
        target.detach().copy_(source.detach())
