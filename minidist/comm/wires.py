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
from .program import caller
from .trace import Trace


class Wires:
    """All messages of a run. Ranks here are ranks of the World; a channel keeps groups and lanes apart."""

    def __init__(self, clock: Clock, trace: Trace, n: int, alpha: float, beta: float, rendezvous: bool):
        self.clock, self.trace = clock, trace
        self.alpha, self.beta, self.rendezvous = alpha, beta, rendezvous
        self._out, self._in = [0.0] * n, [0.0] * n  # when each wire is free
        self._streams: dict[tuple, list[WorldWork]] = defaultdict(list)  # (rank, channel)
        self._sends: dict[tuple, list[Op]] = defaultdict(list)  # (src, dst, channel)
        self._receives: dict[tuple, list[Op]] = defaultdict(list)
        self._anys: dict[tuple, list[Op]] = defaultdict(list)  # (dst, channel)
        self._dead: dict[int, str] = {}

    def post(self, rank: int, ranks: list[int], channel: str, ops, work: WorldWork) -> None:
        """Queue `ops` of a rank; `ranks` translates the group's ranks."""
        work.stream = stream = self._streams[rank, channel]
        where = caller()
        work.ops = []
        for op in ops:
            peer = op.dst if isinstance(op, Send) else op.src
            peer = peer if peer == ANY else ranks[peer]
            src, dst = (rank, peer) if isinstance(op, Send) else (peer, rank)
            work.ops.append(Op(work, op, src, dst, where))
        if ops:
            stream.append(work)
            if stream[0] is work:
                self._activate(channel, work, work.posted)

    def _activate(self, channel: str, work: WorldWork, time: float) -> None:
        for op in work.ops:
            op.time = time
            if self._dead and (error := self._forsaken(op, channel)):
                self._fail(op, channel, time, error)
            elif op.sending and not self.rendezvous:
                self._ready(op, None, channel, time)
            elif op.sending:
                self._offer(op, channel)
            elif op.src == ANY:
                self._anys[op.dst, channel].append(op)
                self._listen(op.dst, channel)
            else:
                self._pair(op.src, op.dst, channel, receive=op)

    def _offer(self, send: Op, channel: str) -> None:
        if self._anys.get((send.dst, channel)) and not self._receives.get((send.src, send.dst, channel)):
            self._sends[send.src, send.dst, channel].append(send)
            self._listen(send.dst, channel)
        else:
            self._pair(send.src, send.dst, channel, send=send)

    def _pair(self, src: int, dst: int, channel: str, send: Op | None = None, receive: Op | None = None) -> None:
        """Match with the oldest waiting operation of the other side, or wait."""
        key = (src, dst, channel)
        mine, others = (self._sends, self._receives) if send else (self._receives, self._sends)
        if others.get(key):
            other = others[key].pop(0)
            self._match(send or other, receive or other, channel)
        else:
            mine[key].append(send or receive)

    def _listen(self, dst: int, channel: str) -> None:
        """Let the oldest wildcard receive of `dst` choose, at the time of the earliest message there is."""
        offers = self._offers(dst, channel)
        if offers and self._anys[dst, channel]:
            time = max(self._anys[dst, channel][0].time, offers[0].time)
            self.clock.at(time, (0, dst), self._choose, dst, channel)

    def _offers(self, dst: int, channel: str) -> list[Op]:
        heads = [queue[0] for (_, to, on), queue in self._sends.items() if queue and to == dst and on == channel]
        return sorted(heads, key=lambda op: (op.time, op.src))

    def _choose(self, now: float, dst: int, channel: str) -> None:
        offers, anys = self._offers(dst, channel), self._anys[dst, channel]
        if anys and offers and offers[0].time <= now:
            send, receive = offers[0], anys.pop(0)
            self._sends[send.src, dst, channel].pop(0)
            receive.src = send.src
            self._match(send, receive, channel)
            self._listen(dst, channel)

    def _match(self, send: Op, receive: Op, channel: str) -> None:
        receive.work.source = receive.work.ranks.index(send.src)
        same = send.x.shape == receive.x.shape and send.x.dtype == receive.x.dtype and send.label == receive.label
        error = None if same else mismatch(send.says(), receive.says())
        if send.x.is_meta != receive.x.is_meta:
            sent, into = send.x.device, receive.x.device
            error = f"rank {send.src} sends a {sent} tensor, but rank {receive.dst} receives into a {into} one"
        time = max(send.time, receive.time)
        if error:
            for op in (send, receive):
                self._fail(op, channel, time, ValueError(error))
        elif send.payload is not None:  # it has left already
            self._started(receive, channel, time)
            _copy(send.payload, receive.x)
            receive.finish(time)
        else:
            self._ready(send, receive, channel, time)

    def _ready(self, send: Op, receive: Op | None, channel: str, ready: float) -> None:
        """Both sides are there at time `ready`; at once if the clock is there too and the wires are free."""
        if max(ready, self._out[send.src], self._in[send.dst]) <= self.clock.reached:
            self._transfer(send, receive, channel, ready)
        else:
            order = (1, ready, send.src, send.dst)
            self.clock.at(ready, order, self._start, order, send, receive, channel)

    def _start(self, now: float, order: tuple, send: Op, receive: Op | None, channel: str) -> None:
        """Start the transfer if both wires are free; else look again when they may be."""
        free = max(self._out[send.src], self._in[send.dst])
        if free > now:
            self.clock.at(free, order, self._start, order, send, receive, channel)
        else:
            self._transfer(send, receive, channel, now)

    def _transfer(self, send: Op, receive: Op | None, channel: str, start: float) -> None:
        nbytes = send.x.numel() * send.x.element_size()
        sent = start + nbytes * self.beta
        arrived = sent + self.alpha
        self._out[send.src] = self._in[send.dst] = sent
        self.trace.add(send.src, send.dst, nbytes, start, sent, arrived, send.label, _lane(channel))
        self._started(send, channel, start)
        if receive is None:
            send.payload, send.time = send.x.detach().clone(), arrived
            send.finish(sent)
            self._offer(send, channel)
        else:
            self._started(receive, channel, start)
            _copy(send.x, receive.x)
            send.finish(sent)
            receive.finish(arrived)

    def _started(self, op: Op, channel: str, time: float) -> None:
        """The next batch of the stream may start once all operations of this one have."""
        work = op.work
        if not op.started:
            op.started = True
            work.unstarted -= 1
            if work.unstarted == 0:
                work.stream.pop(0)
                if work.stream:
                    self._activate(channel, work.stream[0], max(time, work.stream[0].posted))

    def _fail(self, op: Op, channel: str, time: float, error: BaseException) -> None:
        if not op.done:
            op.finish(time, error)
        self._started(op, channel, time)

    def unread(self) -> list[tuple[int, int]]:
        """(src, dst) of messages that left (eager) and that nobody has received."""
        return sorted({(src, dst) for (src, dst, _), queue in self._sends.items() if queue})

    def _forsaken(self, op: Op, channel: str) -> PeerLost | None:
        """What to raise if all that could be at the other end are dead and have left no message."""
        peer = op.dst if op.sending else op.src
        peers = [r for r in op.work.ranks if r != op.owner] if peer == ANY else [peer]
        if any(r not in self._dead or (not op.sending and self._sends.get((r, op.dst, channel))) for r in peers):
            return None
        return op.lost(peers[-1], self._dead[peers[-1]]) if peers else None

    def lost(self, rank: int, why: str) -> None:
        """Rank `rank` is dead: whoever waits for it, now or later, gets PeerLost."""
        now = self.clock.current.time
        self._dead[rank] = why
        for (owner, _), stream in self._streams.items():
            if owner == rank:
                stream.clear()
        for table in (self._sends, self._receives, self._anys):
            for (*_, channel), queue in list(table.items()):
                queue[:] = [op for op in queue if op.owner != rank or op.payload is not None]
                for op in list(queue):
                    if op.payload is None and (error := self._forsaken(op, channel)):
                        queue.remove(op)
                        self._fail(op, channel, now, error)


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    if not target.is_meta:
        target.detach().copy_(source.detach())


def _lane(channel: str) -> str:
    name = channel.rpartition("/")[2]
    return name if name.startswith("lane") else "main"
