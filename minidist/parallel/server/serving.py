"""A server's side: hear pushes, step, answer. Two loops, synchronous and not; see `parameter_server` for the rules.

    synchronous     a batch of named receives, one push of each worker     add in rank order, one step, answer all
    asynchronous    a wildcard receive, a push of whoever is first         one step, answer those who may go on

A worker's last push is answered by `close`, when all have ended and the servers have exchanged their parts.

Seconds: see `cost`. Sources: Li et al. 2014, sections 3.2 and 3.4; Dean et al. 2012, "Large Scale Distributed Deep
Networks", section 4.1; Ho et al. 2013 for the bound.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from torch import Tensor

from ...comm.base import ANY, PeerLost, Recv, Send, Work
from .clocks import Clocks
from .shard import Shard
from .worker import Channel, header


class Update(NamedTuple):
    """One push, added at `time` (seconds, of the Comm's clock): step number `step` of the worker of that rank.

    staleness: updates of this server between the parameters that its gradient was computed with and those it was added
    to.  ahead: by how many steps the worker was then before the slowest.
    """

    time: float
    rank: int
    step: int
    staleness: int
    ahead: int


class _Push(NamedTuple):
    last: bool
    weight: float
    there: list[float]
    gradients: list[Tensor]


class Server:
    """Server number `number`, which holds `shard`. channel: its own.  first: rank of worker 0 in the
    whole Comm.  clocks: of the workers that train.

    updates: every push that was added.  lost: {rank: why} of dead workers.
    """

    def __init__(self, shard: Shard, channel: Channel, clocks: Clocks, first: int, number: int):
        self.shard = shard
        self.channel = channel
        self.clocks = clocks
        self.first = first
        self.number = number
        self.workers = channel.pushes.size - 1
        self.updates: list[Update] = []
        self.lost: dict[int, str] = {}
        self._has = [0] * self.workers  # which version of the parameters
        self._waiting: list[int] = []  # those who have pushed and want to go on
        self._ended: list[int] = []
        self._sending: dict[int, Work] = {}

    def run(self, synchronous: bool) -> None:
        """Until every worker has sent its last push, or died.

        Raises PeerLost for a dead worker and ValueError for one that ends before another, where synchronous.
        """
        while self.clocks.steps:
            if synchronous:
                self._round()
            else:
                self._turn()

    def _round(self) -> None:
        """A synchronous step: the mean of all workers' gradients, added in rank order; all are answered."""
        rooms = [(self._header(), self.shard.room()) for _ in range(self.workers)]
        receives = [
            op
            for worker, (said, gradients) in enumerate(rooms)
            for op in (Recv(said, worker + 1, "push"), *_into(gradients, worker))
        ]
        try:
            self.channel.pushes.batch(receives).wait()
        except PeerLost as lost:
            raise self._broken(lost) from lost
        self._settle()  # who pushes has the last answer
        pushes, version = [_read(said, gradients) for said, gradients in rooms], self.shard.version
        self.shard.step(
            _mean(pushes),
            [max(there) for there in zip(*(push.there for push in pushes), strict=True)],
        )
        for worker, push in enumerate(pushes):
            self._note(worker, version, push.last)
        if self._ended and self._waiting:
            raise ValueError(
                f"worker {self._ended[0]} ends after {self.shard.version} steps, worker "
                f"{self._waiting[0]} goes on: synchronous workers take equally many"
            )
        # servers begin apart
        for worker in sorted(self._waiting, key=lambda w: (w - self.number) % self.workers):
            self._answer(worker, self.shard.buffers)

    def _turn(self) -> None:
        """An asynchronous step: one push, whoever's is first; then those who may go on are answered."""
        said, gradients = self._header(), self.shard.room()
        try:
            heard = self.channel.pushes.irecv(said, ANY, "push")
            heard.wait()
            worker = heard.source - 1
            self.channel.pushes.batch(_into(gradients, worker)).wait()
        except PeerLost as lost:
            self._forget(lost.rank - 1, lost.why)
        else:
            push, version = _read(said, gradients), self.shard.version
            self.shard.step(push.gradients, push.there)
            self._note(worker, version, push.last)
        for worker in [worker for worker in self._waiting if self.clocks.may_go(worker)]:
            # the next step waits for no answer
            self._answer(worker, [buffer.clone() for buffer in self.shard.buffers])

    def close(self) -> None:
        """Answer the last pushes with what the buffers hold."""
        for worker in list(self._ended):
            self._answer(worker, self.shard.buffers)
        self._settle()

    def refuse(self, rank: int) -> None:
        """Tell the workers that wait that it cannot go on without `rank`."""
        answers = self.channel.answers
        for worker in [*self._waiting, *self._ended]:
            with suppress(PeerLost):
                answers.send(header(answers, [rank, self.shard.version]), worker + 1, "answer")

    def _header(self) -> Tensor:
        return header(self.channel.pushes, [0] * (2 + len(self.shard.pieces)))

    def _note(self, worker: int, version: int, last: bool) -> None:
        """A push of `worker` has been added to that version."""
        ahead = self.clocks.ahead(worker)
        self.updates.append(
            Update(
                self.channel.pushes.now(),
                self.first + worker,
                self.clocks.tick(worker),
                version - self._has[worker],
                ahead,
            )
        )
        (self._ended if last else self._waiting).append(worker)
        if last:
            self.clocks.stop(worker)

    def _answer(self, worker: int, buffers: list[Tensor]) -> None:
        """Send the parameters. They must stay as they are until it is done."""
        self._settle(worker)
        self._drop(worker)
        self._has[worker] = self.shard.version
        said = header(self.channel.answers, [-1, self.shard.version])
        sends = [
            Send(said, worker + 1, "answer"),
            *(Send(x, worker + 1, "parameters") for x in buffers),
        ]
        self._sending[worker] = self.channel.answers.batch(sends)

    def _drop(self, worker: int) -> None:
        """It waits no longer."""
        for waiting in (self._waiting, self._ended):
            if worker in waiting:
                waiting.remove(worker)

    def _settle(self, *workers: int) -> None:
        """Wait until the last answers to these (all) workers have left."""
        for worker in workers or list(self._sending):
            try:
                if worker in self._sending:
                    self._sending.pop(worker).wait()
            except PeerLost as lost:
                self._forget(worker, lost.why)

    def _forget(self, worker: int, why: str) -> None:
        """Go on without a dead worker: what it has pushed stays, its clock holds nobody up."""
        self.lost.setdefault(self.first + worker, why)
        self.clocks.stop(worker)
        self._drop(worker)
        self._settle(worker)

    def _broken(self, lost: PeerLost) -> PeerLost:
        """A synchronous step waits for all, and one is dead: the others, whose push has come, are told."""
        worker = lost.rank - 1
        self._waiting = [other for other in range(self.workers) if other != worker]
        self.refuse(self.first + worker)
        return PeerLost(
            self.first + worker,
            f"it was worker {worker} of {self.workers}, and a synchronous step waits "
            f"for every worker ({lost.why})",
        )


def _into(gradients: list[Tensor], worker: int) -> list[Recv]:
    return [Recv(gradient, worker + 1, "gradients") for gradient in gradients]


def _read(said: Tensor, gradients: list[Tensor]) -> _Push:
    last, weight, *there = said.tolist()
    return _Push(bool(last), weight, there, gradients)


def _mean(pushes: list[_Push]) -> list[Tensor]:
    """(g1 + g2 + … + gn)/Σw of gradients that come multiplied with their weights w, in the memory of the first."""
    total, weight = pushes[0].gradients, sum(push.weight for push in pushes)
    if not weight > 0:
        raise ValueError(
            f"the weights of {len(pushes)} workers add up to {weight}: nobody has any samples"
        )
    for push in pushes[1:]:
        for sum_, gradient in zip(total, push.gradients, strict=True):
            sum_.add_(gradient)
    return [sum_.div_(weight) for sum_ in total]
