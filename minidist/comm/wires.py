"""The wires of a World: which messages match, when they start, when they arrive.

A rank's operations on one channel start in posting order, batch by batch, as on an NCCL stream; the
operations of one batch start in any order. A transfer is ready once both sides are at the head of
their streams (rendezvous), or once the sender is (eager). It starts when the sender's wire out and the
receiver's wire in are free, in the order of readiness; they are busy for N·β seconds, and it arrives
α later. The sender is done when its wire is free again, the receiver on arrival.

Cost of a message of N bytes on free wires: α + N·β (Hockney 1994). A wildcard receive matches only when
no rank could still send earlier, which is when the clock acts on its event.
"""

from __future__ import annotations

from collections import defaultdict

import torch

from .base import ANY, PeerLost, Send, mismatch
from .clock import Clock
from .posted import Op, WorldWork
from .trace import Trace, lane_of


class Channel:
    """What keeps the messages of one group, or of one lane, apart from all others; operations wait here."""

    def __init__(self, name: str):
        self.lane = lane_of(name)
        self.streams: dict[int, list[WorldWork]] = defaultdict(list)  # by rank: batches that have not all started
        self.pairs: dict[tuple[int, int], tuple[list[Op], list[Op]]] = {}  # by (src, dst): sends, receives
        self.anys: dict[int, list[Op]] = defaultdict(list)  # by dst

    def pair(self, src: int, dst: int) -> tuple[list[Op], list[Op]]:
        """Sends and receives between two ranks that have not met; one list of the two is empty."""
        found = self.pairs.get((src, dst))
        if found is None:
            found = self.pairs[src, dst] = ([], [])
        return found

    def offers(self, dst: int) -> list[Op]:
        """The oldest send of each rank to `dst`, in the order of their times."""
        heads = [sends[0] for (_, to), (sends, _) in self.pairs.items() if sends and to == dst]
        return sorted(heads, key=lambda op: (op.time, op.src))


class Wires:
    """All messages of a run. Ranks here are ranks of the World."""

    def __init__(self, clock: Clock, trace: Trace, n: int, alpha: float, beta: float, rendezvous: bool):
        self.clock, self.trace = clock, trace
        self.alpha, self.beta, self.rendezvous = alpha, beta, rendezvous
        self._out, self._in = [0.0] * n, [0.0] * n  # when each wire is free
        self._channels: dict[str, Channel] = {}
        self._dead: dict[int, str] = {}

    def channel(self, name: str) -> Channel:
        """The channel of that name, the same for every rank."""
        return self._channels.setdefault(name, Channel(name))

    def post(self, rank: int, channel: Channel, ops, work: WorldWork) -> None:
        """Queue `ops` of a rank."""
        ranks, posted = work.ranks, []
        for op in ops:
            if isinstance(op, Send):
                posted.append(Op(work, op.x, op.label, True, rank, ranks[op.dst]))
            else:
                posted.append(Op(work, op.x, op.label, False, ANY if op.src == ANY else ranks[op.src], rank))
        work.ops, work.channel = posted, channel
        if posted:
            stream = channel.streams[rank]
            stream.append(work)
            if len(stream) == 1:
                self._activate(work, work.posted)

    def _activate(self, work: WorldWork, time: float) -> None:
        channel = work.channel
        for op in work.ops:
            op.time = time
            if self._dead and (error := self._forsaken(op)):
                self._fail(op, time, error)
            elif op.sending:
                self._offer(op, channel) if self.rendezvous else self._ready(op, None, time)
            elif op.src == ANY:
                channel.anys[op.dst].append(op)
                self._listen(op.dst, channel)
            else:
                sends, receives = channel.pair(op.src, op.dst)
                if sends:
                    self._match(sends.pop(0), op)
                else:
                    receives.append(op)

    def _offer(self, send: Op, channel: Channel) -> None:
        sends, receives = channel.pair(send.src, send.dst)
        if receives:
            self._match(send, receives.pop(0))
        else:
            sends.append(send)
            if channel.anys:
                self._listen(send.dst, channel)

    def _listen(self, dst: int, channel: Channel) -> None:
        """Let the oldest wildcard receive of `dst` choose, at the time of the earliest message there is."""
        offers, anys = channel.offers(dst), channel.anys[dst]
        if offers and anys:
            self.clock.at(max(anys[0].time, offers[0].time), (0, dst), self._choose, dst, channel)

    def _choose(self, now: float, dst: int, channel: Channel) -> None:
        offers, anys = channel.offers(dst), channel.anys[dst]
        if anys and offers and offers[0].time <= now:
            send, receive = offers[0], anys.pop(0)
            channel.pair(send.src, dst)[0].pop(0)
            receive.src = send.src
            self._match(send, receive)
            self._listen(dst, channel)

    def _match(self, send: Op, receive: Op) -> None:
        receive.work.source = receive.work.ranks.index(send.src)
        same = send.x.shape == receive.x.shape and send.x.dtype == receive.x.dtype and send.label == receive.label
        error = None if same else mismatch(send.says(), receive.says())
        if send.x.is_meta is not receive.x.is_meta:
            sent, into = send.x.device, receive.x.device
            error = f"rank {send.src} sends a {sent} tensor, but rank {receive.dst} receives into a {into} one"
        time = max(send.time, receive.time)
        if error:
            for op in (send, receive):
                self._fail(op, time, ValueError(error))
        elif send.payload is not None:  # it has left already
            self._started(receive, time)
            _copy(send.payload, receive.x)
            receive.finish(time)
        else:
            self._ready(send, receive, time)

    def _ready(self, send: Op, receive: Op | None, ready: float) -> None:
        """Both sides are there at time `ready`: at once if the clock is there, and nothing is before it."""
        free = max(ready, self._out[send.src], self._in[send.dst])
        if free <= self.clock.reached and not self.clock.due():
            self._transfer(send, receive, ready)
        else:
            order = (1, ready, send.src, send.dst)
            self.clock.at(free, order, self._start, order, send, receive)

    def _start(self, now: float, order: tuple, send: Op, receive: Op | None) -> None:
        """Start the transfer if both wires are free; else look again when they may be."""
        free = max(self._out[send.src], self._in[send.dst])
        if free > now:
            self.clock.at(free, order, self._start, order, send, receive)
        else:
            self._transfer(send, receive, now)

    def _transfer(self, send: Op, receive: Op | None, start: float) -> None:
        nbytes = send.x.nbytes
        sent = start + nbytes * self.beta
        arrived = sent + self.alpha
        self._out[send.src] = self._in[send.dst] = sent
        channel = send.work.channel
        self.trace.add(send.src, send.dst, nbytes, start, sent, arrived, send.label, channel.lane)
        self._started(send, start)
        if receive is None:
            send.payload, send.time = send.x.detach().clone(), arrived
            send.finish(sent)
            self._offer(send, channel)
        else:
            self._started(receive, start)
            _copy(send.x, receive.x)
            send.finish(sent)
            receive.finish(arrived)

    def _started(self, op: Op, time: float) -> None:
        """The next batch of the stream may start once all operations of this one have."""
        work = op.work
        if not op.started:
            op.started = True
            work.unstarted -= 1
            if work.unstarted == 0:
                stream = work.channel.streams[op.src if op.sending else op.dst]
                stream.pop(0)
                if stream:
                    self._activate(stream[0], max(time, stream[0].posted))

    def _fail(self, op: Op, time: float, error: BaseException) -> None:
        if not op.done:
            op.finish(time, error)
        self._started(op, time)

    def unread(self) -> list[tuple[int, int]]:
        """(src, dst) of messages that left (eager) and that nobody has received."""
        return sorted({pair for c in self._channels.values() for pair, (sends, _) in c.pairs.items() if sends})

    def _forsaken(self, op: Op) -> PeerLost | None:
        """What to raise if all that could be at the other end are dead and have left no message."""
        peer = op.dst if op.sending else op.src
        peers = [r for r in op.work.ranks if r != op.owner] if peer == ANY else [peer]
        if any(r not in self._dead or (not op.sending and op.work.channel.pair(r, op.dst)[0]) for r in peers):
            return None
        return op.lost(peers[-1], self._dead[peers[-1]]) if peers else None

    def lost(self, rank: int, why: str) -> None:
        """Rank `rank` is dead: whoever waits for it, now or later, gets PeerLost."""
        now = self.clock.current.time
        self._dead[rank] = why
        for channel in list(self._channels.values()):
            channel.streams[rank].clear()
            queues = [queue for pair in channel.pairs.values() for queue in pair]
            for queue in queues + list(channel.anys.values()):
                queue[:] = [op for op in queue if op.owner != rank or op.payload is not None]
                for op in list(queue):
                    if op.payload is None and (error := self._forsaken(op)):
                        queue.remove(op)
                        self._fail(op, now, error)


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    if not target.is_meta:
        target.detach().copy_(source.detach())
