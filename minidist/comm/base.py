"""All that a technique may know of the outside world: `Comm`.

A technique is handed a `Comm` and never asks what lies behind it: ranks of a `World` on a virtual
clock, processes over shared memory, or any torch.distributed group. Every transport implements one
primitive, `_post(ops)`: start these sends and receives together. All else is written here, once.

Invariants, in every world: from one rank to another, sends and receives match in the order in which they were posted,
and nothing else orders them: neither what either rank does with a third one, nor the order in which it waits. There
are no tags (NCCL has none); a label travels in the checked header, is compared, and is never used to match.
Source of the rule and the names: MPI 4.1, chapter 3 (point to point; 3.5, order), chapter 7 (communicators).
"""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..arguments import whole

# ------------------------------------------------------------
# The host, as a technique sees it: the memory and the cores of the machine that a rank's device sits in.


class Host(AbstractContextManager):
    """`comm.host`: what is made in `with comm.host:`, on `comm.host.device`, lies in the host's memory.

        with comm.host:
            there = torch.empty_like(x, device=comm.host.device).copy_(x)     # over the host's link
            there.mul_(2)                                                    # by the host's cores

    Operators on what lies there run there, also outside; only a copy may have operands on both sides. A World tells
    the two apart even where both are one to torch (cpu and cpu, meta and meta), counts the bytes copied, follows the
    host's memory apart from the device's, and charges time if its cluster has a `host`. Elsewhere nothing is done:
    tensors are where their torch.device says.

    >>> import torch
    >>> from minidist import World
    >>> def program(comm):
    ...     x = torch.ones(1000)  # 4,000 bytes
    ...     with comm.host:
    ...         there = torch.empty_like(x, device=comm.host.device).copy_(x)
    ...     x.copy_(there.mul_(2))
    ...     return x[0].item()
    >>> results = World(1, meter=True).run(program)
    >>> host = results.trace.host[0]
    >>> results, host.down, host.up, host.memory.peak
    ([2.0], 4000, 4000, 4000)
    """

    def __init__(self, device: torch.device | str = "cpu"):
        self.device = torch.device(device)

    def __exit__(self, *exception) -> None:
        pass


# ------------------------------------------------------------
# What all worlds have in common: their errors, operations, Works, and the Comm itself.


ANY = -1
"""Takes the place of a rank in `recv`, `irecv` and `Recv`: receive from whichever rank's message comes first.

Over NCCL, which cannot receive from an unnamed rank, it raises ValueError.

>>> import torch
>>> from minidist.comm import ANY, World
>>> def program(comm):
...     if comm.rank > 0:
...         return comm.send(torch.tensor([10 * comm.rank]), 0)
...     heard = {}
...     for _ in range(comm.size - 1):
...         x = torch.zeros(1, dtype=torch.int64)
...         work = comm.irecv(x, ANY)
...         work.wait()
...         heard[work.source] = x.item()
...     return sorted(heard.items())
>>> World(3).run(program)[0]
[(1, 10), (2, 20)]
"""
# the label of messages that carry a header only, and are not counted
AGREE = "(what the collective is)"
_DENSE = torch.strided


class CommError(Exception):
    """The ranks disagree, or one of them is gone. Catch this class to go on after either.

    >>> from minidist.comm import CommError, Deadlock, Mismatch, PeerLost, RankMissing
    >>> [issubclass(kind, CommError) for kind in (Deadlock, Mismatch, PeerLost, RankMissing)]
    [True, True, True, True]
    """


class Deadlock(CommError, RuntimeError):
    """No rank can go on. The message names each waiting rank, what it waits for, and its line.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.comm import Deadlock
    >>> def program(comm):
    ...     other = 1 - comm.rank
    ...     comm.send(torch.zeros(1), other)  # both send, and neither receives
    ...     comm.recv(torch.zeros(1), other)
    >>> try:
    ...     World(2).run(program)
    ... except Deadlock as error:
    ...     print(error)
    no rank can go on (2 wait for each other):
      rank 0 waits for send of (1,) float32 to rank 1
        at ...:3: comm.send(torch.zeros(1), other)...
      rank 1 waits for send of (1,) float32 to rank 0
        at ...:3: comm.send(torch.zeros(1), other)...
    """


class RankMissing(Deadlock, TimeoutError):
    """A rank did not come within the timeout. The message says who is missing and where it is instead.

    A World never raises it, because it sees a `Deadlock` at once.

    >>> import time
    >>> import torch
    >>> from minidist import launch
    >>> from minidist.comm import RankMissing
    >>> def program(comm):
    ...     if comm.rank == 0:
    ...         time.sleep(60)  # it is busy with something else
    ...     else:
    ...         comm.recv(torch.zeros(1), src=0)
    >>> try:
    ...     launch(program, 2, timeout=0.5)
    ... except RankMissing as error:
    ...     print(error)
    rank 1 waited 0.5 s for receive of (1,) float32 from rank 0
      rank 0 is at ...
    """


class Mismatch(CommError, ValueError):
    """The two sides of a transfer disagree about it. The message names both, with their lines.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.comm import Mismatch
    >>> def program(comm):
    ...     if comm.rank == 0:
    ...         comm.send(torch.zeros(2), dst=1)
    ...     else:
    ...         comm.recv(torch.zeros(3), src=0)
    >>> try:
    ...     World(2).run(program)
    ... except Mismatch as error:
    ...     print(error)
    rank 0 sends (2,) float32
        at ...:3: comm.send(torch.zeros(2), dst=1)
      but rank 1 receives (3,) float32
        at ...:5: comm.recv(torch.zeros(3), src=0)
    """


class PeerLost(CommError, ConnectionError):
    """The other side of a transfer is dead. `rank` is its rank in the Comm that was used.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.comm import PeerLost
    >>> def program(comm):
    ...     if comm.rank == 0:
    ...         raise ZeroDivisionError
    ...     try:
    ...         comm.recv(torch.zeros(1), src=0)
    ...     except PeerLost as error:
    ...         return f"went on without rank {error.rank}"
    >>> World(2, on_failure="continue").run(program)
    [ZeroDivisionError(), 'went on without rank 0']
    """

    def __init__(self, rank: int, why: str = "it ended before the message was passed on"):
        super().__init__(rank, why)
        self.rank, self.why = rank, why

    def __str__(self) -> str:
        return f"rank {self.rank} is lost: {self.why}"


class Link(NamedTuple):
    """A link in the α–β model: a message of N bytes takes alpha + N·beta seconds.

    alpha: seconds.  beta: seconds a byte.

    >>> from minidist.comm import Link
    >>> alpha, beta = link = Link(alpha=0.5, beta=0.25)
    >>> link
    Link(alpha=0.5, beta=0.25)
    >>> alpha + 10 * beta
    3.0
    """

    alpha: float
    beta: float


@dataclass(slots=True, eq=False)
class Send:
    """One operation of a `batch`: the values of `x` go to rank `dst`.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.comm import Send
    >>> def program(comm):
    ...     if comm.rank == 0:
    ...         x = torch.tensor([1.0, 2.0])
    ...         comm.batch([Send(x, 1), Send(x, 2)]).wait()
    ...     else:
    ...         return comm.recv(torch.empty(2), src=0).tolist()
    >>> World(3).run(program)
    [None, [1.0, 2.0], [1.0, 2.0]]
    """

    x: Tensor
    dst: int
    label: str | None = None


@dataclass(slots=True, eq=False)
class Recv:
    """One operation of a `batch`: `x` is filled from rank `src` (or `ANY`).

    >>> import torch
    >>> from minidist import World
    >>> from minidist.comm import Recv
    >>> def program(comm):
    ...     if comm.rank:
    ...         comm.send(torch.tensor([comm.rank]), dst=0)
    ...     else:
    ...         rows = torch.zeros(2, 1, dtype=torch.int64)
    ...         comm.batch([Recv(rows[0], 1), Recv(rows[1], 2)]).wait()
    ...         return rows.tolist()
    >>> World(3).run(program)
    [[[1], [2]], None, None]
    """

    x: Tensor
    src: int
    label: str | None = None


class Work(ABC):
    """A communication, or a job of `stream`, that is under way.

    `wait()` returns once it has finished: the result of a job of `stream`, else None. If something went wrong, it
    raises the error. After a receive from `ANY`, `source` is the rank that the message came from.

    >>> import torch
    >>> from minidist import World
    >>> def program(comm):
    ...     if comm.rank == 0:
    ...         comm.send(torch.ones(3), dst=1)
    ...         return
    ...     x = torch.zeros(3)
    ...     work = comm.irecv(x, src=0)
    ...     before = work.done()
    ...     work.wait()
    ...     return before, work.done(), x.tolist()
    >>> World(2).run(program)
    [None, (False, True, [1.0, 1.0, 1.0])]
    """

    __slots__ = ()
    source: int | None

    @abstractmethod
    def done(self) -> bool:
        """Whether `wait` would return at once. Each call also gives the communication a chance to progress."""

    @abstractmethod
    def wait(self) -> Any:
        """Block until it has finished. Returns the result of a job of `stream`, else None.

        Raises Mismatch if the other side describes the message differently, PeerLost if it is dead, Deadlock in a World
        if no rank can go on, RankMissing elsewhere if the other side does not come within the timeout, and whatever a
        job of `stream` raised.
        """


class Comm(ABC):
    """A group of `size` ranks, seen from one of them.

    rank: this rank, 0 … size−1.  size: number of ranks, n.  device: where its tensors live.  host: see `Host`.
    algorithm: the algorithm that collectives use unless told otherwise ("ring", or "native" over NCCL).
    native: the transport library's own collectives, or None if it has none.
    without_rng_swap: a context for code that draws no random numbers, so that a World need not swap its ranks'
    generators.
    call: the collective under way, as (its number on this Comm, how its caller described it), which message headers
    carry; None outside one.
    members: its ranks as numbered in the whole run, which shows whether two Comms are of the same group; None: unknown.
    any_source: whether it can receive from `ANY` (over NCCL it cannot).
    one_way: set by whoever makes the Comm if each of its ranks only sends or only receives. Over NCCL, operations then
    start at once, without waiting for one that might go the other way.
    compares_calls: whether messages are checked by a transport that does not detect a deadlock at once.

    A Comm of one rank is the serial case: the same code runs without a message.

    >>> import torch
    >>> from minidist import World
    >>> def program(comm):
    ...     right = (comm.rank + 1) % comm.size
    ...     left = (comm.rank - 1) % comm.size
    ...     mine = torch.tensor([comm.rank])
    ...     return comm.sendrecv(mine, right, torch.empty_like(mine), left).item()
    >>> World(4).run(program)  # what each rank has from its left neighbour
    [3, 0, 1, 2]
    """

    rank: int
    size: int
    device: torch.device
    host: Host = Host()
    algorithm: str = "ring"
    native: Any = None
    without_rng_swap: AbstractContextManager = nullcontext()
    call: tuple[int, str] | None = None
    members: tuple[int, ...] | None = None
    any_source: bool = True
    one_way: bool = False
    compares_calls: bool = False
    _splits: int = 0
    _calls: int = 0

    def __deepcopy__(self, memo: dict) -> Comm:
        """Itself: a copy of what uses a Comm, such as a SyncBatchNorm, uses the same one."""
        return self

    @abstractmethod
    def _post(self, ops: Sequence[Send | Recv], waited: bool = False) -> Work:
        """Start checked operations together. `waited`: the caller waits for them at once."""

    @abstractmethod
    def _subgroup(self, ranks: list[int], name: str) -> Comm:
        """The Comm of these ranks of this Comm (this rank among them), on the channel of that name."""

    @abstractmethod
    def stream(self, fn: Callable, *args, lane: int = 0) -> Work:
        """Run `fn(lane_comm, *args)` beside this rank's program; `wait()` returns its result.

        `lane_comm` is a Comm of the same ranks with a channel of its own, so its messages cannot get mixed up with the
        program's. The jobs of one lane run one after the other, in the order of the calls, which must be the same on
        every rank; different lanes run side by side.

        If `fn` raises, `work.wait()` raises the same exception. ValueError if `fn` is not a function.

        >>> import torch
        >>> from minidist import World
        >>> from minidist.collectives import all_reduce_
        >>> def program(comm):
        ...     gradient = torch.tensor([1.0 + comm.rank])
        ...     work = comm.stream(all_reduce_, gradient)  # all_reduce_(lane, gradient)
        ...     loss = torch.tensor(2.0 * comm.rank)  # computed beside it; `gradient` is left alone
        ...     return loss.item(), work.wait().item()
        >>> World(2).run(program)
        [(0.0, 3.0), (2.0, 3.0)]
        """

    def on_host(self) -> Comm:
        """A Comm of the same ranks for tensors that the host reads or writes, such as shapes, names and saved values.

        Over NCCL, its messages travel over gloo, from the host's memory, and no device waits for them; elsewhere it is
        this Comm itself. All ranks must use it in the same way.

        >>> from minidist import World
        >>> World(2).run(lambda comm: comm.on_host() is comm)
        [True, True]
        """
        return self

    @abstractmethod
    def link(self, dst: int, src: int | None = None) -> Link:
        """α (seconds) and β (seconds per byte) of the idle link from `src` (default: this rank) to `dst`, for choosing
        an algorithm.

        ValueError for a rank that does not exist, and for a link from a rank to itself.

        >>> from minidist import World
        >>> from minidist.comm import Cluster
        >>> def program(comm):
        ...     near, far = comm.link(1, src=0), comm.link(8, src=0)
        ...     return far.beta > 7 * near.beta  # NVLink in the node, a network card between nodes
        >>> World(16, cluster=Cluster.dgx_h100(nodes=2)).run(program)[0]
        True
        """

    def now(self) -> float:
        """The time in seconds: virtual in a World, elsewhere that of the machine's monotonic clock.

        >>> import torch
        >>> from minidist import World
        >>> def program(comm):
        ...     before = comm.now()
        ...     if comm.rank == 0:
        ...         comm.send(torch.zeros(2), dst=1)  # 8 bytes
        ...     else:
        ...         comm.recv(torch.zeros(2), src=0)
        ...     return comm.now() - before
        >>> World(2, alpha=3.0, beta=0.5).run(program)
        [4.0, 7.0]
        """
        return time.monotonic()

    @contextmanager
    def collective(self, what: str, rooted: bool = False) -> Iterator[None]:
        """A context around a collective. `what` describes it, in up to 200 characters, and must be the same on all
        ranks: it travels in each message's header.

        If the collective fails, its messages that are still on their way are dropped, so the next one works. rooted:
        which ranks send depends on the description, so ranks that disagree might all send, or all receive; in
        processes, neighbours therefore compare it first.

        >>> import torch
        >>> from minidist import World
        >>> from minidist.comm import Mismatch
        >>> def program(comm):
        ...     with comm.collective(f"my_shift by {comm.rank + 1}"):  # the ranks disagree
        ...         comm.sendrecv(torch.zeros(1), 1 - comm.rank, torch.zeros(1), 1 - comm.rank)
        >>> try:
        ...     World(2).run(program)
        ... except Mismatch as error:
        ...     print(error)
        rank 1 sends (1,) float32
            at ...
          but rank 0 receives (1,) float32
            at ...
          rank 1 is in my_shift by 2, collective 1 of this Comm
          rank 0 is in my_shift by 1, collective 1 of this Comm
        """
        if self.size == 1:
            yield
            return
        self._calls += 1
        outer, self.call = self.call, (self._calls, what)
        try:
            if rooted and self.compares_calls:
                self._compare_calls()
            yield
        except CommError:
            self._abandon(self.call)
            raise
        finally:
            self.call = outer

    def _compare_calls(self) -> None:
        """An empty message around the ring: its header says what the collective is, and the next rank compares."""
        right, left = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        self._do((Send(torch.empty(0), right, AGREE), Recv(torch.empty(0), left, AGREE)))

    def _abandon(self, call: tuple[int, str]) -> None:  # noqa: B027
        """Give up what is left of a collective that failed: what it has posted takes no message any more."""

    def batch(self, ops: Sequence[Send | Recv], after: Work | None = None) -> Work:
        """Start all of `ops` together, under one Work; each does what `isend` or `irecv` would do.

        The other side can meet a posted operation at once, whether or not it is in a batch. Only an NCCL stream, used
        directly, requires two-way traffic to be in one group; `World(n, ordered=True)` shows what hangs there.
        after: a batch of this Comm that should start first if both could start: for a pipeline whose steps share a
        wire. A World follows it; elsewhere, the order of posting decides what leaves first anyway.
        Raises ValueError for a rank that does not exist or is this one, for a tensor that is not dense, and for a
        receive into an expanded tensor; TypeError for an operation that is not a Send or a Recv, for one without a
        tensor, and for a label that is not a string. In all these cases nothing has been posted.

        >>> import torch
        >>> from minidist import World
        >>> from minidist.comm import Recv, Send
        >>> def program(comm):
        ...     x, y = torch.tensor([10 * comm.rank]), torch.tensor([0])
        ...     other = 1 - comm.rank
        ...     comm.batch([Send(x, other), Recv(y, other)]).wait()
        ...     return y.item()
        >>> World(2).run(program)
        [10, 0]
        """
        self._check(ops)
        return self._post(ops) if after is None else self._post_after(ops, after)

    def _post_after(self, ops: Sequence[Send | Recv], after: Work) -> Work:
        """Start `ops`, once `after` has started where that can be told."""
        return self._post(ops)

    def _check(self, ops: Sequence[Send | Recv]) -> None:
        for op in ops:
            if isinstance(op, Send):
                sending, peer = True, op.dst
            elif isinstance(op, Recv):
                sending, peer = False, op.src
            else:
                raise TypeError(
                    f"a batch is a list of Send and Recv; {type(op).__name__} is neither"
                )
            x = op.x
            if not (
                type(peer) is int
                and -1 < peer < self.size
                and peer != self.rank
                and (op.label is None or isinstance(op.label, str))
                and isinstance(x, Tensor)
                and x.layout is _DENSE
                and (sending or x.is_contiguous() or 0 not in x.stride())
            ):
                self._refuse(op, x, peer, sending)

    def _refuse(self, op: Send | Recv, x: Any, peer: Any, sending: bool) -> None:
        """Say what is wrong with an operation, if anything is; a number of another kind becomes an int."""
        to = "sends to" if sending else "receives from"
        peer = whole(peer, f"rank {self.rank} {to} a rank, a whole number")
        setattr(op, "dst" if sending else "src", peer)
        if not (op.label is None or isinstance(op.label, str)):
            raise TypeError(f"a label is a string, not {op.label!r}")
        verb = f"send to rank {peer}" if sending else f"receive from rank {peer}"
        if not isinstance(x, Tensor):
            raise TypeError(f"rank {self.rank} can only {verb} a tensor, not {type(x).__name__}")
        if x.layout is not _DENSE:
            raise ValueError(
                f"rank {self.rank} can only {verb} a dense tensor, not a {x.layout} one"
            )
        if not sending and expanded(x):
            why = "was expanded: several of its elements are one place in memory"
            raise ValueError(f"rank {self.rank} cannot receive into {describe(x)}, which {why}")
        if not (0 <= peer < self.size or (peer == ANY and not sending)):
            raise ValueError(
                f"rank {self.rank} cannot {verb}: there are {self.size} ranks, 0 to {self.size - 1}"
            )
        if peer == self.rank:
            raise ValueError(f"rank {self.rank} cannot {verb}, itself: copy the tensor instead")

    def isend(self, x: Tensor, dst: int, label: str | None = None) -> Work:
        """Start sending `x` (any shape) to rank `dst`. Do not change `x` until the Work is done.

        Sends are matched with the receives that `dst` posts for this rank, in the order of posting. Works may be waited
        for in any order, and a send that no receive has met yet does not hold up other operations, not even blocking
        ones.

        Errors are as in `batch`; `Work.wait` raises those of the transfer itself.

        >>> import torch
        >>> from minidist import World
        >>> def program(comm):
        ...     x, other = torch.tensor([comm.rank + 1]), 1 - comm.rank
        ...     work = comm.isend(x, other)  # returns at once, so both ranks go on to receive
        ...     y = comm.recv(torch.empty_like(x), other)
        ...     work.wait()  # from here on x may be changed
        ...     return y.item()
        >>> World(2).run(program)
        [2, 1]
        """
        return self.batch([Send(x, dst, label)])

    def irecv(self, x: Tensor, src: int, label: str | None = None) -> Work:
        """Start receiving into `x` from rank `src`; shape and dtype must be the sender's. For the order, see `isend`.

        `src=ANY` takes the first message from any rank, and `Work.source` says whose it was (ValueError over NCCL,
        which cannot do this). When a rank dies, one such receive on each Comm fails with PeerLost, and the next one
        hears the other ranks (as in ULFM; over gloo a death goes unnoticed). Receives that were posted before it have
        first choice of the messages; those posted after it come last.

        Errors are as in `batch`; `Work.wait` raises those of the transfer itself.

        >>> import torch
        >>> from minidist import World
        >>> from minidist.comm import ANY
        >>> def program(comm):
        ...     if comm.rank:
        ...         return comm.send(torch.tensor([10.0 * comm.rank]), dst=0)
        ...     x, heard = torch.zeros(1), {}
        ...     for _ in range(comm.size - 1):
        ...         work = comm.irecv(x, src=ANY)
        ...         work.wait()
        ...         heard[work.source] = x.item()
        ...     return heard
        >>> World(3).run(program)[0]
        {1: 10.0, 2: 20.0}
        """
        return self.batch([Recv(x, src, label)])

    def send(self, x: Tensor, dst: int, label: str | None = None) -> None:
        """Send `x` to rank `dst`; afterwards `x` may be changed. In a World it waits for the receive, unless
        rendezvous=False.

        Errors are as in `batch` and `Work.wait`.

        >>> import torch
        >>> from minidist import World
        >>> def program(comm):
        ...     if comm.rank == 0:
        ...         comm.send(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), dst=1, label="weights")
        ...     else:
        ...         return comm.recv(torch.empty(2, 2), src=0, label="weights").tolist()
        >>> World(2).run(program)
        [None, [[1.0, 2.0], [3.0, 4.0]]]
        """
        self._do((Send(x, dst, label),))

    def recv(self, x: Tensor, src: int, label: str | None = None) -> Tensor:
        """Receive into `x` from rank `src` and return `x`; shape, dtype and label must be the sender's.

        Errors are as in `batch` and `Work.wait`.

        >>> import torch
        >>> from minidist import World
        >>> def chain(comm):  # each rank adds 1 and passes it on
        ...     x = torch.zeros(1)
        ...     if comm.rank > 0:
        ...         comm.recv(x, comm.rank - 1)
        ...     x += 1
        ...     if comm.rank < comm.size - 1:
        ...         comm.send(x, comm.rank + 1)
        ...     return x.item()
        >>> World(4).run(chain)
        [1.0, 2.0, 3.0, 4.0]
        """
        self._do((Recv(x, src, label),))
        return x

    def sendrecv(
        self, x: Tensor, dst: int, into: Tensor, src: int, label: str | None = None
    ) -> Tensor:
        """Send `x` to `dst` while receiving into `into` from `src`; returns `into`. It never deadlocks in a ring.

        Errors are as in `batch` and `Work.wait`.

        >>> import torch
        >>> from minidist import World
        >>> def program(comm):  # a sum around the ring, one number at a time
        ...     total = passed = torch.tensor([comm.rank + 1])
        ...     for _ in range(comm.size - 1):
        ...         into = torch.empty_like(passed)
        ...         right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        ...         passed = comm.sendrecv(passed, right, into, left)
        ...         total = total + passed
        ...     return total.item()
        >>> World(4).run(program)
        [10, 10, 10, 10]
        """
        self._do((Send(x, dst, label), Recv(into, src, label)))
        return into

    def _do(self, ops: Sequence[Send | Recv]) -> None:
        self._check(ops)
        work = self._post(ops, waited=True)
        del ops  # thousands may wait, each with what it holds
        work.wait()

    def split(self, color, key=None) -> Comm | Any:  # Any: None, for a color that is None
        """Divide the group: ranks of the same `color` get a Comm of their own, ordered by (key, rank).

        All ranks must call it, as with MPI_Comm_split. A rank with `color=None` joins no group and gets None. Colors
        and keys travel between all ranks in messages of 24 bytes. No message is sent if `color` is the list of every
        rank's color (and `key`, if given, the list of every rank's key), the same on all ranks. ValueError for a list
        of the wrong length, and for a color or a key that is not a whole number.

        >>> from minidist import World
        >>> def program(comm):
        ...     row = comm.split(comm.rank // 2)  # ranks 0 1 and 2 3
        ...     column = comm.split([0, 1, 0, 1])  # 0 2 and 1 3, known everywhere: no message
        ...     return row.rank, column.rank, column.members
        >>> World(4).run(program)
        [(0, 0, (0, 2)), (1, 0, (1, 3)), (0, 1, (0, 2)), (1, 1, (1, 3))]
        """
        if isinstance(color, list):
            colors, keys = color, key or [0] * self.size
            if not len(colors) == len(keys) == self.size:
                raise ValueError(
                    f"{len(colors)} colors and {len(keys)} keys were given for {self.size} ranks"
                )
        else:
            joins = color is not None
            color = int(color or 0) if isinstance(color, bool | None) else color
            color = whole(color, "a color is a whole number, or None")
            key = self.rank if key is None else key
            key = whole(key, "the key of a rank in its group is a whole number")
            rows = self._exchange([int(joins), color, key])
            colors, keys = [c if joins else None for joins, c, _ in rows], [k for *_, k in rows]
        # on every rank, in a group or not: channels must have the same name everywhere
        self._splits += 1
        color = colors[self.rank]
        if color is None:
            return None
        members = [r for r in range(self.size) if colors[r] == color]
        members.sort(key=lambda r: keys[r])
        return self._subgroup(members, f"{self._splits}.{color}")

    def keep(self, key, make: Callable[[], Any], alike: bool = False) -> Any:
        """The result of `make()` from the first call with this key, kept for reuse with this Comm (groups, plans).

        alike: all ranks would make the same object and never change it, so the ranks of a World share one.

        >>> from minidist import World
        >>> def program(comm):
        ...     first = comm.keep("halves", lambda: comm.split(comm.rank % 2))
        ...     return first is comm.keep("halves", lambda: comm.split(comm.rank % 2))
        >>> World(2).run(program)
        [True, True]
        """
        values = self.__dict__.setdefault("_alike" if alike else "_kept", {})
        if key not in values:
            values[key] = make()
        return values[key]

    def _exchange(self, row: list[int]) -> list[list[int]]:
        """Every rank's row of small integers, on the CPU, whatever the Comm's device."""
        rows = [torch.tensor(row, dtype=torch.int64) for _ in range(self.size)]
        rest = [r for r in range(self.size) if r != self.rank]
        self._post(
            [Send(rows[self.rank], r, "split") for r in rest]
            + [Recv(rows[r], r, "split") for r in rest]
        ).wait()
        return [r.tolist() for r in rows]


def check_job(fn: Callable) -> None:
    """ValueError for what `Comm.stream` cannot run."""
    if not callable(fn):
        raise ValueError(f"a stream runs a function fn(lane, …), not {fn!r}")


def expanded(x: Tensor) -> bool:
    """Whether several elements of `x` are one place in memory, as `expand` makes it."""
    return x.numel() > 0 and any(s == 0 and n > 1 for s, n in zip(x.stride(), x.shape, strict=True))


def describe(x: Tensor) -> str:
    """`(2, 3) float32`, as error messages name a tensor."""
    return f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}"


# ------------------------------------------------------------
# `stream` where time is real: each lane is a thread of the rank, with a Comm of its own.


class ThreadWork(Work):
    """A job of a lane; `wait()` gives its result or raises its exception."""

    __slots__ = ("_error", "_finished", "_result", "_unwaited", "source")

    def __init__(self, unwaited: dict[Work, None]):
        self._finished = threading.Event()
        self._result = None
        self._error: BaseException | None = None
        self.source = None
        self._unwaited = unwaited
        unwaited[self] = None

    def run(self, fn: Callable, args: tuple) -> None:
        try:
            self._result = fn(*args)
        except BaseException as error:
            self._error = error
        self._finished.set()

    def done(self) -> bool:
        return self._finished.is_set()

    def wait(self):
        self._finished.wait()
        self._unwaited.pop(self, None)
        if self._error is not None:
            raise self._error
        return self._result


class ThreadLane:
    """Does the jobs of one lane, one after the other, each with the lane's Comm as first argument."""

    def __init__(self, comm: Comm, name: str, unwaited: dict[Work, None]):
        self.comm, self._unwaited = comm, unwaited
        self._jobs: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, fn: Callable, args: tuple) -> ThreadWork:
        work = ThreadWork(self._unwaited)
        self._jobs.put((work, fn, args))
        return work

    def _run(self) -> None:
        while True:
            work, fn, args = self._jobs.get()
            work.run(fn, (self.comm, *args))


# ------------------------------------------------------------
# The checked header of a message: what each side says of it, and what is wrong between the two.


Call = tuple[int, str] | None


class Side(NamedTuple):
    """What one side of a transfer says of it, in the checked header of the message.

    call: the collective that the message is part of: which one on its Comm, and what its caller said.
    """

    rank: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    label: str | None
    call: Call
    where: str

    def __str__(self) -> str:
        label = f" labelled {self.label!r}" if self.label else ""
        at = f"\n    at {self.where}" if self.where else ""
        return f"{self.shape} {str(self.dtype).removeprefix('torch.')}{label}{at}"


def order(sent: Call, expected: Call) -> int:
    """1 if a message belongs to a later collective than the receive that it met, −1 if to an earlier one, else 0.

    That happens after a collective which failed on some ranks: they have left it, others have not.
    """
    if sent is None or expected is None:
        return 0
    return (sent[0] > expected[0]) - (sent[0] < expected[0])


def mismatch(sender: Side, receiver: Side) -> str | None:
    """What is wrong between the two sides, naming both; None if they agree."""
    if sender[1:5] == receiver[1:5]:
        return None
    what = f"rank {sender.rank} sends {sender}\n  but rank {receiver.rank} receives {receiver}"
    if sender.call == receiver.call:
        return what
    calls = [f"\n  rank {side.rank} is in {_call(side.call)}" for side in (sender, receiver)]
    return what + "".join(calls)


def _call(call: Call) -> str:
    return "no collective" if call is None else f"{call[1]}, collective {call[0]} of this Comm"
