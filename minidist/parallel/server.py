"""The parameter server: synchronous, asynchronous, bounded staleness.

step              one server, synchronous, twenty lines
ParameterServer   several servers, three modes; `train` on every rank gives a `Report` with every `Update`
Partition         which server holds what
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..collectives import all_gather_, broadcast_
from ..comm.base import ANY, Comm, PeerLost, Recv, Send, Work
from ..split import bounds, uneven

# ------------------------------------------------------------
# The parameter server in twenty lines: rank 0 holds the parameters, all others compute gradients.
#
#     server     p ──► every worker      waits for worker 1, 2, … n: p.grad = (g1 + g2 + … + gn)/n, one step
#     worker w          pull, forward, backward ── gw ──► server
#
# Every number passes the server's wire n times in each direction: 2nNβ for N bytes, and each of P parameters is waited
# for on its own, (nP + 1)α. Source: Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server".


def step(comm: Comm, module: nn.Module, optimizer: Optimizer, backward: Callable[[], Any]) -> Any:
    """One synchronous step. On rank 0 `module` holds the parameters, which `optimizer` steps; elsewhere it is unused.

    backward(): leaves the gradients of this worker's part of the batch in `module`, one for each parameter; its result
    is returned, on the server None.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel.server import step
    >>> def program(comm):
    ...     net = torch.nn.Linear(1, 1, bias=False)
    ...     torch.nn.init.zeros_(net.weight)
    ...     x = torch.full((1, 1), float(comm.rank))
    ...     optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    ...     step(comm, net, optimizer, lambda: net(x).sum().backward())
    ...     return net.weight.item()
    >>> World(3).run(program)[0]  # the server's, less the mean of 1 and 2
    -1.5
    """
    params, workers = list(module.parameters()), range(1, comm.size)
    if comm.rank > 0:
        for p in params:
            comm.recv(p, 0)
        module.zero_grad()
        result = backward()
        for p in params:
            comm.send(p.grad, 0)  # type: ignore[arg-type]  # backward() has left one
        return result
    for p in params:
        for worker in workers:
            comm.send(p, worker)
    for p in params:
        p.grad = comm.recv(torch.empty_like(p), 1)
        for worker in workers[1:]:
            p.grad += comm.recv(torch.empty_like(p), worker)
        p.grad /= len(workers)
    optimizer.step()
    return None


# ------------------------------------------------------------
# Who may go on: the clock of each worker, and the bound on how far they drift apart.
#
# A worker's clock is the number of its steps that a server has added. Stale synchronous parallel (SSP): a worker begins
# another step only while its clock is at most `bound` ahead of the slowest one's.
#
#     bound 1    worker 1  ███ ███ ███ ·····wait····· ███        clock 3, slowest 1: 2 ahead, it waits
#                worker 2  ██████████████ ██████████████         clock 2: now worker 1 is 1 ahead, and goes on
#
# bound 0 is lock-step, None asynchronous. A worker that has ended or died has no clock: nobody waits for it.
#
# A gradient misses at most (n−1)(2·bound + 1) updates of others. Source: Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server",
# sections 2 and 3.


class Clocks:
    """The clocks of `workers`, 0 at first. `steps[worker]`: of those that train.

    Raises ValueError for a bound below 0.
    """

    def __init__(self, workers, bound: int | None = None):
        if bound is not None and bound < 0:
            raise ValueError(f"workers are at least 0 steps apart: the bound is not {bound}")
        self.steps, self.bound = dict.fromkeys(workers, 0), bound

    def tick(self, worker: int) -> int:
        """One more step of `worker` was added. Returns how many."""
        self.steps[worker] += 1
        return self.steps[worker]

    def stop(self, worker: int) -> None:
        """`worker` has ended, or died: it holds nobody up."""
        self.steps.pop(worker, None)

    def ahead(self, worker: int) -> int:
        """By how many steps `worker` is before the slowest."""
        return self.steps[worker] - min(self.steps.values())

    def may_go(self, worker: int) -> bool:
        """Whether it may begin another step."""
        return self.bound is None or self.ahead(worker) <= self.bound


# ------------------------------------------------------------
# Which server holds what: the parameters one after the other, cut evenly, also through the midst of one.
#
#     parameters    w1 w1 w1 w1 w1 w1 w1 b1 w2 w2 w2 b2       a flat buffer of N bytes for each dtype
#     servers       0        │ 1       │ 2        │ 3         N/s each, to one number; a server's parts are its pieces
#
# A server's wire carries as many bytes as it holds, for every worker. Whole parameters would be out of balance: one
# matrix of a small network, or the embedding of a large one, is more than a server's share. An optimizer that treats each
# number by itself (SGD, Adam and nearly all of torch.optim) does the same to a piece as to the whole; one that looks at
# rows or norms does not.
#
# Source: Li et al. 2014, section 4.3 (ranges of keys). Invariant: all ranks find the same partition.


class Piece(NamedTuple):
    """Elements `first` … `end` − 1 of parameter number `param`."""

    param: int
    first: int
    end: int


class Partition:
    """`params` over `servers`. Their values are not kept here.

    pieces[server]: what it holds, in order, one dtype after the other.

    >>> import torch
    >>> from minidist.parallel.server import Partition
    >>> partition = Partition([torch.zeros(3, 4), torch.zeros(4)], servers=2)
    >>> partition.nbytes  # 8 numbers each
    [32, 32]
    >>> partition.pieces[1]  # the last four numbers of the first parameter, and the second
    [Piece(param=0, first=8, end=12), Piece(param=1, first=0, end=4)]
    """

    def __init__(self, params: Sequence[Tensor], servers: int):
        self.params = list(params)
        dtypes = dict.fromkeys(p.dtype for p in self.params)
        self._groups = [[i for i, p in enumerate(self.params) if p.dtype == d] for d in dtypes]
        self._lengths: list[list[int]] = []  # of each dtype's chunks
        self.pieces: list[list[Piece]] = [[] for _ in range(servers)]
        for group in self._groups:
            sizes = [self.params[i].numel() for i in group]
            self._lengths.append(uneven(sum(sizes), servers))
            for pieces, (begin, stop) in zip(self.pieces, bounds(self._lengths[-1]), strict=True):
                for i, (first, end) in zip(group, bounds(sizes), strict=True):
                    low, high = max(first, begin), min(end, stop)
                    if low < high:
                        pieces.append(Piece(i, low - first, high - first))

    @property
    def nbytes(self) -> list[int]:
        """Bytes that each server holds."""
        sizes = [p.element_size() for p in self.params]
        return [
            sum((piece.end - piece.first) * sizes[piece.param] for piece in pieces)
            for pieces in self.pieces
        ]

    def flatten(self, tensors: Sequence[Tensor | None]) -> list[Tensor]:
        """One flat tensor for each dtype, of tensors shaped as the parameters; None: zeros."""
        filled = [
            torch.zeros_like(p) if t is None else t.detach()
            for t, p in zip(tensors, self.params, strict=True)
        ]
        return [torch.cat([filled[i].reshape(-1) for i in group]) for group in self._groups]

    def spread(self, flats: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
        """The way back, into tensors shaped as the parameters."""
        for group, flat in zip(self._groups, flats, strict=True):
            parts = flat.split([self.params[i].numel() for i in group])
            for i, part in zip(group, parts, strict=True):
                tensors[i].detach().copy_(part.view(tensors[i].shape))

    def by_server(self, flats: Sequence[Tensor]) -> list[list[Tensor]]:
        """For each flat tensor the servers' parts of it, as views; some may be empty."""
        return [
            list(flat.split(lengths)) for flat, lengths in zip(flats, self._lengths, strict=True)
        ]

    def chunks(self, flats: Sequence[Tensor], server: int) -> list[Tensor]:
        """One server's parts: one for each dtype of which it has any."""
        parts = [chunks[server] for chunks in self.by_server(flats)]
        return [part for part in parts if part.numel()]


# ------------------------------------------------------------
# What one server holds: its chunks of the parameters, cut into pieces, and the optimizer that steps them.


Factory = Callable[[list[nn.Parameter]], Optimizer]


class Shard:
    """Server number `server`'s part of `partition`, with the values that its parameters have now.

    optimizer(pieces): of flat nn.Parameters.  buffers: a flat tensor for each dtype; they always hold the newest values.
    version: number of steps taken.
    """

    def __init__(self, partition: Partition, server: int, optimizer: Factory):
        held = partition.chunks(partition.flatten(partition.params), server)
        self.buffers = [chunk.clone() for chunk in held]
        self._sizes: list[list[int]] = [
            [
                piece.end - piece.first
                for piece in partition.pieces[server]
                if partition.params[piece.param].dtype == buffer.dtype
            ]
            for buffer in self.buffers
        ]
        self.pieces = [nn.Parameter(view) for view in self.views(self.buffers)]
        self.optimizer = optimizer(self.pieces) if self.pieces else None
        self.version = 0

    def views(self, flats: Sequence[Tensor]) -> list[Tensor]:
        """The pieces of tensors that lie as the buffers do."""
        split = [flat.split(sizes) for flat, sizes in zip(flats, self._sizes, strict=True)]
        return [view for views in split for view in views]

    def gradient_buffers(self) -> list[Tensor]:
        """Buffers to receive gradients in."""
        return [torch.empty_like(buffer) for buffer in self.buffers]

    def step(self, gradients: Sequence[Tensor], there: Sequence[float]) -> None:
        """One step of the optimizer. gradients: as the buffers.  there: 0 for a piece that has none."""
        for piece, gradient, has in zip(self.pieces, self.views(gradients), there, strict=True):
            piece.grad = gradient if has else None
        if self.optimizer is not None:
            self.optimizer.step()
        for piece, view in zip(self.pieces, self.views(self.buffers), strict=True):
            piece.grad = None
            # an optimizer may move them to a buffer of its own
            if piece.data_ptr() != view.data_ptr():
                view.copy_(piece.detach())
        self.version += 1


# ------------------------------------------------------------
# A worker's side: push gradients, pull parameters.
#
#     push    header, gradients ──►  each server its part                  header: whether it is the last, weight, and for
#     pull    header, parameters ◄── from each, when it lets us go on      each piece, whether it has a gradient
#
# A push is answered by parameters; the room for them is there at once, and `pull` waits for them. The first server of
# worker w is number w mod s, the next one follows: so workers in step do not queue for one server while others idle.
# Gradients go to a server as soon as it has taken their header; a push returns when they have left.
#
# Two flat buffers of N bytes beside parameters and gradients. Source: Li et al. 2014, section 3.2.


SERVER = 0  # its rank on its own channel; worker w is rank w + 1 there


def header(comm: Comm, numbers) -> Tensor:
    """float64 numbers that a program reads: on the CPU where the device has no values."""
    return torch.tensor(
        numbers, dtype=torch.float64, device="cpu" if comm.device.type == "meta" else comm.device
    )


def dead_server(server: int, servers: int, lost: PeerLost) -> PeerLost:
    """What ends the run: a server is gone, whose rank in the whole Comm is its number."""
    what = f"it was parameter server {server} of {servers}, and its part of the parameters went with it"
    return PeerLost(server, f"{what} ({lost.why})")


class Channel(NamedTuple):
    """One server and all workers, twice: one Comm for each direction."""

    pushes: Comm
    answers: Comm

    @staticmethod
    def of(comm: Comm, server: int, servers: int) -> Channel | Any:  # Any: None, on other servers
        """That of a server, made on all ranks at the same time. No message."""
        ranks = (server, *range(servers, comm.size))
        both = [comm.split([0 if r in ranks else None for r in range(comm.size)]) for _ in range(2)]
        return None if None in both else Channel(*both)


class Worker:
    """Worker number `index`. channels[s]: those of server s.

    versions[s]: number of updates in the parameters last pulled from server s.
    """

    def __init__(self, partition: Partition, channels: list[Channel], index: int):
        self.partition = partition
        self.channels = channels
        self.index = index
        self.versions = [0] * len(channels)
        # by server: the header of its answer (the number of a lost rank or −1, its updates so far), and two Works
        self._answers: dict[int, tuple[Tensor, Work, Work]] = {}
        self._pulled = partition.flatten(partition.params)

    @torch.no_grad()
    def push(self, weight: float | None = None, last: bool = False) -> None:
        """Send the gradients of the parameters; one that has none counts as zeros.

        weight: number of samples behind them, where workers differ.  last: nothing comes after it, and its answer are
        the final parameters.
        Raises PeerLost naming a server that is dead, ValueError if the last push's answer has not been pulled.
        """
        if self._answers:
            raise ValueError(
                f"worker {self.index} pushes before it has pulled {len(self._answers)} servers' answers"
            )
        grads = [p.grad for p in self.partition.params]
        flats = self.partition.flatten(grads)
        for flat in flats if weight is not None else ():
            if weight:
                flat.mul_(weight)
            else:
                flat.zero_()  # the mean loss of no samples is nan
        servers = len(self.channels)
        for server in ((self.index + k) % servers for k in range(servers)):
            pushes, answers = self.channels[server]
            answer, room = header(answers, [0, 0]), self.partition.chunks(self._pulled, server)
            heard = answers.irecv(answer, SERVER, "answer")
            arrived = answers.batch([Recv(part, SERVER, "parameters") for part in room])
            self._answers[server] = answer, heard, arrived
            there = [grads[piece.param] is not None for piece in self.partition.pieces[server]]
            said = header(pushes, [last, 1 if weight is None else weight, *there])
            parts = self.partition.chunks(flats, server)
            sends = [Send(said, SERVER, "push"), *(Send(g, SERVER, "gradients") for g in parts)]
            try:
                pushes.batch(sends).wait()
            except PeerLost as lost:
                raise dead_server(server, servers, lost) from lost

    def pull(self) -> None:
        """Wait for the answers to the last push, and put the parameters into the model. Without a push: nothing.

        Raises PeerLost naming a server that is dead, or the worker whose death ends a synchronous run.
        """
        refused = None
        for server, (answer, heard, arrived) in self._answers.items():
            try:
                heard.wait()
                lost, version = map(int, answer.tolist())
                if lost < 0:
                    arrived.wait()
                    self.versions[server] = version
                else:
                    refused = PeerLost(
                        lost, f"it is dead, and server {server} cannot go on without it"
                    )
            except PeerLost as lost:
                raise dead_server(server, len(self.channels), lost) from lost
        if refused is not None:
            raise refused
        if self._answers:
            self.partition.spread(self._pulled, self.partition.params)
        self._answers = {}


# ------------------------------------------------------------
# A server's side: hear pushes, step, answer. Two loops, synchronous and not; see `ParameterServer` for the rules.
#
#     synchronous     a batch of named receives, one push of each worker     add in rank order, one step, answer all
#     asynchronous    a wildcard receive, a push of whoever is first         one step, answer those who may go on
#
# A worker's last push is answered by `close`, when all have ended and the servers have exchanged their parts.
#
# Sources: Li et al. 2014, sections 3.2 and 3.4; Dean et al. 2012, "Large Scale Distributed Deep Networks", section 4.1;
# Ho et al. 2013 for the bound.


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


class Server:
    """Server number `number`, which holds `shard`. channel: its own.  first: rank of worker 0 in the
    whole Comm.  clocks: of the workers that train.

    updates: every push that was added.  lost: {rank: why} of dead workers.
    """

    def __init__(self, shard: Shard, channel: Channel, clocks: Clocks, first: int, number: int):
        self.shard = shard
        self.pushes, self.answers = channel
        self.clocks = clocks
        self.first = first
        self.number = number
        self.workers = self.pushes.size - 1
        self.updates: list[Update] = []
        self.lost: dict[int, str] = {}
        self._has = [0] * self.workers  # which version of the parameters
        self._waiting: dict[int, bool] = {}  # who has pushed, and whether for the last time
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
        headers = [self._header() for _ in range(self.workers)]
        gradients = [self.shard.gradient_buffers() for _ in range(self.workers)]
        receives = []
        for worker in range(self.workers):
            receives.append(Recv(headers[worker], worker + 1, "push"))
            receives += [Recv(g, worker + 1, "gradients") for g in gradients[worker]]
        try:
            self.pushes.batch(receives).wait()
        except PeerLost as lost:
            raise self._broken(lost) from lost
        self._settle()  # who pushes has the last answer
        last, weights, *there = zip(*(said.tolist() for said in headers), strict=True)
        version = self.shard.version
        self.shard.step(mean_(gradients, sum(weights)), [max(flags) for flags in there])
        for worker in range(self.workers):
            self._note(worker, version, last[worker])
        if any(last) and not all(last):
            raise ValueError(
                f"worker {last.index(1)} ends after {self.shard.version} steps, worker "
                f"{last.index(0)} goes on: synchronous workers take equally many"
            )
        if not any(last):
            for k in range(self.workers):
                worker = (self.number + k) % self.workers  # servers begin apart
                self._answer(worker, self.shard.buffers)

    def _turn(self) -> None:
        """An asynchronous step: one push, whoever's is first; then those who may go on are answered."""
        said, gradients = self._header(), self.shard.gradient_buffers()
        try:
            heard = self.pushes.irecv(said, ANY, "push")
            heard.wait()
            assert heard.source is not None, "a wildcard receive that is done has heard from a rank"
            self.pushes.batch([Recv(g, heard.source, "gradients") for g in gradients]).wait()
        except PeerLost as lost:
            self._forget(lost.rank - 1, lost.why)
        else:
            last, _, *there = said.tolist()
            version = self.shard.version
            self.shard.step(gradients, there)
            self._note(heard.source - 1, version, last)
        going = [worker for worker, last in self._waiting.items() if not last]
        for worker in [worker for worker in going if self.clocks.may_go(worker)]:
            # the next step waits for no answer
            self._answer(worker, [buffer.clone() for buffer in self.shard.buffers])

    def close(self) -> None:
        """Answer the last pushes with what the buffers hold."""
        for worker in list(self._waiting):
            self._answer(worker, self.shard.buffers)
        self._settle()

    def refuse(self, rank: int) -> None:
        """Tell the workers that wait that it cannot go on without `rank`."""
        for worker in self._waiting:
            with suppress(PeerLost):
                said = header(self.answers, [rank, self.shard.version])
                self.answers.send(said, worker + 1, "answer")

    def _header(self) -> Tensor:
        return header(self.pushes, [0] * (2 + len(self.shard.pieces)))

    def _note(self, worker: int, version: int, last: float) -> None:
        """A push of `worker` has been added to that version."""
        now, ahead = self.pushes.now(), self.clocks.ahead(worker)
        step, stale = self.clocks.tick(worker), version - self._has[worker]
        self.updates.append(Update(now, self.first + worker, step, stale, ahead))
        self._waiting[worker] = bool(last)
        if last:
            self.clocks.stop(worker)

    def _answer(self, worker: int, buffers: list[Tensor]) -> None:
        """Send the parameters. They must stay as they are until it is done."""
        self._settle(worker)
        self._waiting.pop(worker, None)
        self._has[worker] = self.shard.version
        said = header(self.answers, [-1, self.shard.version])
        parameters = [Send(x, worker + 1, "parameters") for x in buffers]
        self._sending[worker] = self.answers.batch([Send(said, worker + 1, "answer"), *parameters])

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
        self._waiting.pop(worker, None)
        self._settle(worker)

    def _broken(self, lost: PeerLost) -> PeerLost:
        """A synchronous step waits for all, and one is dead: the others, whose push has come, are told."""
        worker = lost.rank - 1
        self._waiting = {other: False for other in range(self.workers) if other != worker}
        self.refuse(self.first + worker)
        return PeerLost(
            self.first + worker,
            f"it was worker {worker} of {self.workers}, and a synchronous step waits "
            f"for every worker ({lost.why})",
        )


def mean_(gradients: list[list[Tensor]], weight: float) -> list[Tensor]:
    """(g1 + g2 + … + gn)/Σw of gradients that come multiplied with their weights w, in the memory of the first."""
    if not weight > 0:
        raise ValueError(
            f"the weights of {len(gradients)} workers add up to {weight}: nobody has any samples"
        )
    for total, *others in zip(*gradients, strict=True):
        for gradient in others:
            total.add_(gradient)
        total.div_(weight)
    return gradients[0]


# ------------------------------------------------------------
# The parameter server: some ranks hold the parameters and step them, the others compute gradients.
#
#     ranks 0 … s−1      servers, N/s bytes of the parameters each, with their optimizer      see `Partition`, `Server`
#     ranks s … s+n−1    workers 0 … n−1: pull, forward, backward, push                       see `Worker`
#
#     mode      a push is              a worker goes on                        gradients are
#     "sync"    averaged with all n    when all n have pushed                  of the newest parameters
#     "async"   a step of its own      at once                                 stale by any number of updates
#     "ssp"     a step of its own      unless it is `bound` ahead of the last  stale by (n−1)(2·bound + 1) at most
#
# Synchronous: the same bits as one rank that adds the n gradients in rank order, and divides. A slow worker stops all in
# "sync", nobody in "async", and in "ssp" those who run ahead of it. A worker may die (runners' on_failure="continue"):
# that ends "sync", by PeerLost; the others go on, in "ssp" without its clock. A dead server ends any run, by PeerLost.
# Sources: Li et al. 2014; Dean et al. 2012, section 4.1; Ho et al. 2013.


class Report(NamedTuple):
    """What a rank has of a run.

    values: what `step` returned of each batch, on a worker.  updates: every push that was added, in order, on a server.
    lost: {rank: why} of the workers that died, on a server.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel import ParameterServer
    >>> def program(comm):
    ...     net = torch.nn.Linear(1, 1)
    ...     server = ParameterServer(net, comm, lambda p: torch.optim.SGD(p, lr=0.1))
    ...     report = server.train([torch.ones(1, 1)] * 2, lambda x: net(x).sum().backward())
    ...     return [(update.rank, update.step) for update in report.updates]
    >>> World(3).run(program)[0]  # the server's: two pushes of each of two workers
    [(1, 1), (2, 1), (1, 2), (2, 2)]
    """

    values: list
    updates: list[Update]
    lost: dict[int, str]


class ParameterServer:
    """`module`'s trained parameters on `servers` servers, for the workers among the ranks of `comm`.

        server = ParameterServer(model, comm, lambda p: torch.optim.SGD(p, lr=0.1), mode="ssp", bound=2)

        def step(batch):                            # on a worker: leaves gradients in the model
            x, y = batch
            loss = cross_entropy(model(x), y)
            loss.backward()
            return comm.now(), loss.item()

        report = server.train(batches, step)        # on all ranks; a server does not look at them

    optimizer(pieces): over a list of flat nn.Parameters, on servers; of torch.optim any that treats each number by
    itself.
    mode: "sync", each step waits for a push of every worker, and takes the mean of their gradients; "async", each push
    is a step, and its worker goes on at once; "ssp", the same, but a worker that is more than `bound` steps ahead of the
    slowest waits for it.
    worker: this rank's number among the `workers`, None on a server.  server: its number, None on a worker.
    weight: where workers' batches differ in size `step` sets it, on all of them, for a weighted mean ("sync" only).
    All ranks start with rank 0's parameters and buffers; buffers then are each worker's own.
    Over gloo no rank is told of another's death: a server that waits for a dead worker ends by its timeout.
    Raises ValueError if there is no server or no worker, over NCCL, for a bound that the mode lacks or does not have,
    and for a module on another device than the Comm's.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel import ParameterServer
    >>> def program(comm):
    ...     net = torch.nn.Linear(1, 1, bias=False)
    ...     torch.nn.init.zeros_(net.weight)
    ...     server = ParameterServer(net, comm, lambda p: torch.optim.SGD(p, lr=1.0))
    ...     def step(x):
    ...         net(x).sum().backward()  # the gradient is x
    ...         return net.weight.item()
    ...     return server.train([torch.full((1, 1), float(comm.rank))] * 2, step).values
    >>> World(3).run(program)  # a server; two workers, whose gradients have a mean of 1.5
    [[], [0.0, -1.5], [0.0, -1.5]]
    """

    def __init__(
        self,
        module: nn.Module,
        comm: Comm,
        optimizer: Factory,
        servers: int = 1,
        mode: str = "sync",
        bound: int | None = None,
    ):
        _check_servers(module, comm, servers, mode, bound)
        self.module = module
        self.comm = comm
        self.servers = servers
        self.workers = comm.size - servers
        self.mode = mode
        self.server: int | None = None
        self.worker: int | None = None
        self.weight: float | None = None
        broadcast_(comm, [*module.parameters(), *module.buffers()])
        self.params = [p for p in module.parameters() if p.requires_grad]
        self.partition = Partition(self.params, servers)
        channels = [Channel.of(comm, server, servers) for server in range(servers)]
        self._among = comm.split([0 if r < servers else None for r in range(comm.size)])
        if comm.rank >= servers:
            self.worker = comm.rank - servers
            self._worker = Worker(self.partition, channels, self.worker)
        else:
            self.server = comm.rank
            self.shard = Shard(self.partition, self.server, optimizer)
            clocks = Clocks(range(self.workers), bound)
            self._server = Server(self.shard, channels[self.server], clocks, servers, self.server)

    def train(self, batches: Iterable, step: Callable[[Any], Any]) -> Report:
        """Serve, or work: `step(batch)` for each of this worker's `batches`, with a pull before and a push after it.

        Returns when all workers have ended, with the final parameters in `module` on every rank. One call for each
        ParameterServer; a batch is asked for before the step on the one before it.
        Raises PeerLost and ValueError as above; ValueError for a worker without a batch, and for synchronous workers
        with unequally many.

        >>> from functools import partial
        >>> import torch
        >>> from minidist import World
        >>> from minidist.parallel import ParameterServer
        >>> def program(comm):
        ...     net = torch.nn.Linear(1, 1)
        ...     optimizer = partial(torch.optim.SGD, lr=0.1)
        ...     server = ParameterServer(net, comm, optimizer, mode="async")
        ...     report = server.train([torch.ones(1, 1)] * 3, lambda x: net(x).sum().backward())
        ...     return [update.staleness for update in report.updates]
        >>> World(4).run(program)[0]  # others' updates between its pull and its push
        [0, 1, 2, 2, 2, 2, 2, 2, 2]
        """
        if self.server is not None:
            self._serve()
            return Report([], self._server.updates, self._server.lost)
        values = []
        for batch, last in with_last(batches):
            self._worker.pull()
            self.module.zero_grad()
            values.append(step(batch))
            if self.weight is not None and self.mode != "sync":
                raise ValueError(
                    f"a weight of {self.weight} has no meaning in mode {self.mode!r}: nothing is averaged"
                )
            self._worker.push(self.weight, last)
        if not values:
            raise ValueError(
                f"worker {self.worker} of {self.workers} has 0 batches: it needs at least 1"
            )
        self._worker.pull()
        return Report(values, [], {})

    def _serve(self) -> None:
        self._server.run(self.mode == "sync")
        flats = self.partition.flatten(self.params)
        held = self.partition.chunks(flats, self._server.number)
        for chunk, buffer in zip(held, self.shard.buffers, strict=True):
            chunk.copy_(buffer)
        try:
            for chunks in self.partition.by_server(flats):
                all_gather_(self._among, chunks)
        except PeerLost as lost:
            self._server.refuse(lost.rank)
            raise dead_server(lost.rank, self.servers, lost) from lost
        self.partition.spread(flats, self.params)
        self._server.close()


def with_last(batches: Iterable) -> Iterator[tuple[Any, bool]]:
    """Each batch, and whether it is the last one."""
    rest = iter(batches)
    for batch in rest:
        for following in rest:
            yield batch, False
            batch = following
        yield batch, True


def _check_servers(
    module: nn.Module, comm: Comm, servers: int, mode: str, bound: int | None
) -> None:
    if not 1 <= servers < comm.size:
        raise ValueError(
            f"{servers} servers among {comm.size} ranks: at least 1 is a server and 1 a worker"
        )
    if not comm.any_source:
        raise ValueError(
            "a server receives from whichever worker is first, which NCCL cannot: run it over gloo, with "
            'from_env("gloo") and the module on the CPU, or --backend gloo'
        )
    if mode not in ("sync", "async", "ssp"):
        raise ValueError(f'mode is "sync", "async" or "ssp", not {mode!r}')
    if (bound is None) is (mode == "ssp"):
        raise ValueError(
            f'a bound belongs to mode="ssp", which needs one: mode is {mode!r} and bound {bound}'
        )
    for name, p in module.named_parameters():
        if p.device.type != comm.device.type:
            raise ValueError(
                f"{name} is on {p.device}, this Comm passes tensors on {comm.device}: move the module"
            )
