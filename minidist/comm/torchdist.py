"""Any torch.distributed group as a `Comm`: what runs under torchrun, on one machine or many.

A Comm is sends and receives, and all else is built on them. When checked, each message is two: a header of 512
bytes (shape, dtype, label, collective, file and line of the program) and the values. Unchecked, gloo returns a silently
wrong result where shapes differ.

                   over gloo                             over NCCL
    values         of the CPU, by threads                of GPUs, on their streams
    channels       tags of one group                     a group each, made and met by all its ranks (nccl.py)
    posted         starts at once (`TorchWork`)          starts with what else is posted, in one group (`GroupedWork`)
    headers        before the values                     beside the values, over gloo
    lanes          a thread each (base.py)               a stream each (nccl.py)
    small things   the same Comm                         `on_host()`: a Comm of the same ranks over gloo

Several Comms of one group have channels of their own. As in MPI, all ranks of a group make its Comms,
in the same order: the group's store counts them.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import marshal
import os
import socket
import struct
import sys
import threading
import time
from abc import abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import (
    BackendConfig,
    _get_default_group,
    _get_process_group_store,
)

from .base import (
    ANY,
    Comm,
    CommError,
    Link,
    Mismatch,
    PeerLost,
    RankMissing,
    Recv,
    Send,
    ThreadLane,
    Work,
    check_job,
    describe,
    order,
)
from .cluster import ends
from .flight import Watch
from .message import HEADER, mismatched, packed, says, settled
from .nccl import Native, StreamLane, named_group, warm
from .program import DEFAULT_TIMEOUT, check_seed, check_timeout, seed_all, seed_of
from .trace import Trace, lane_of

# ------------------------------------------------------------
# The network interface at which gloo should wait for other hosts.
#
# Gloo waits at the address of this host's name. On many systems that is loopback (Debian writes `127.0.1.1 NAME` into
# /etc/hosts), where no other host can connect, and the run would end in a timeout.


LOOPBACK = "127."
ADDRESS_OF = 0x8915  # Linux's SIOCGIFADDR
# an address of documentation, to which nothing is sent: only the route there is asked for
ANYWHERE = "192.0.2.1"


def name_interface(master: str) -> None:
    """Set GLOO_SOCKET_IFNAME if gloo would choose loopback: to the interface towards `master`, the address at which all
    ranks meet, else to the one of the default route, else to the only one.

    Nothing happens if it is set already, or if `master` is "localhost", so that all are on this machine. Raises
    RuntimeError if there are several interfaces, and no route prefers one.
    """
    here = master in ("localhost", "::1") or master.startswith(LOOPBACK)
    if sys.platform != "linux" or "GLOO_SOCKET_IFNAME" in os.environ or here:
        return
    name = socket.gethostname()
    own = address_of(name)
    if not own.startswith(LOOPBACK):
        return
    names = interfaces()
    routes = [
        names[address] for address in map(address_towards, (master, ANYWHERE)) if address in names
    ]
    if not routes and len(names) > 1:
        raise RuntimeError(
            f"this host's name, {name}, stands for {own}, where no other host can connect, and it has "
            f"{len(names)} network interfaces: set GLOO_SOCKET_IFNAME to the one through which the "
            f"hosts reach each other ({', '.join(names.values())})"
        )
    for interface in [*routes, *names.values()][:1]:
        os.environ["GLOO_SOCKET_IFNAME"] = interface


def address_of(host: str) -> str:
    """Loopback if nobody knows the name: so gloo does."""
    try:
        return socket.gethostbyname(host)
    except OSError:
        return "127.0.0.1"


def address_towards(host: str) -> str:
    """This host's own address on the way to `host`; "" if there is no way. Nothing is sent."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.connect((host, 9))
        return asked.getsockname()[0]
    return ""


def interfaces() -> dict[str, str]:
    """The names of all network interfaces but loopback, by their IPv4 addresses."""
    names = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no address
                answer = fcntl.ioctl(asked, ADDRESS_OF, struct.pack("256s", name.encode()))
                address = socket.inet_ntoa(answer[20:24])
                if not address.startswith(LOOPBACK):
                    names[address] = name
    return names


# ------------------------------------------------------------
# Who reads the headers of posted receives over gloo, where nothing moves unless a thread waits for it.
#
# A message is a header and its values. The values can be received once the header has been read, and only then can the
# sender go on. So the headers of all posted receives must be read, whatever their rank waits for, or two ranks that have
# posted everything wait for each other:
#
#     rank 0   a = isend(x, 1);  b = irecv(y, 1);  a.wait()      a is over when rank 1 has read its header,
#     rank 1   a = isend(x, 0);  b = irecv(y, 0);  a.wait()      though it waits for its own a
#
# For each source from which a header is expected there is a thread, which ends when none has been for a while. It only
# reads. A message goes to the first receive that it can be for, in the order of posting; or it is kept until there is one.
#
# A receive from any source is met by the first message that no receive before it takes, and what is posted after it
# comes after it (as in MPI): it is posted to gloo only when the wildcard's header has been read. Gloo forgets no receive:
# the header of one that was given up brings the next message, which is for whoever is next. A Comm without headers
# cannot tell: there the values of the next message that no named receive has been posted for are lost.
#
# Invariant: gloo has been asked for a header at least for each receive that waits. One lock is held wherever a receive is
# given a message, or taken back, so that no receive is both.


_NEVER = timedelta(days=365)
_IDLE = 0.5  # seconds after which a reader that expects nothing ends


class Receive:
    """A posted receive. `heard`: set when it has been given a message, so that its values are on their way, or nothing
    will be any more."""

    def __init__(self, work: TorchWork, op: Recv, said: tuple):
        self.work = work
        self.op = op
        self.said = said
        self.heard = threading.Event()


class Source:
    """What a Comm expects from one rank, or from any.

    unread: receives in the order of posting.  posted: headers (of a Comm without any: values) that gloo has been asked
    for, each with the receive for which it was; they may outnumber the receives.  early: what messages say that have
    come, and have no receive yet.
    """

    def __init__(self):
        self.unread: deque[Receive] = deque()
        self.posted: deque[tuple[Receive, tuple]] = deque()
        self.early: deque[tuple] = deque()
        self.reading = False  # by a thread


class Inbox:
    """The receives that one Comm has posted over gloo."""

    def __init__(self, comm: TorchComm):
        self._comm = comm
        self._changed = threading.Condition()
        self._sources: dict[int, Source] = defaultdict(Source)  # by rank, or ANY
        self._behind: deque[Receive] = deque()  # posted behind a wildcard

    def post(self, receives: list[Receive]) -> None:
        with self._changed:
            self._behind += receives
            self._advance()

    def withdraw(self, receives: list[Receive]) -> bool:
        """These take nothing any more. Returns whether any of them had not been given a message."""
        with self._changed:
            waiting = [receive for receive in receives if not receive.heard.is_set()]
            for receive in waiting:
                self._heard(receive)
            self._advance()
            return bool(waiting)

    # All below, but `_read`, is called with the lock held.

    def _advance(self) -> None:
        """Give what has come to whoever it is for, and ask gloo for all that no wildcard comes before."""
        anyone = self._sources[ANY]
        self._hand_out()
        # without headers nothing tells whose message one that was given up brings: nobody waits for it
        while self._behind and not (anyone.unread or (self._comm.checked and anyone.posted)):
            receive = self._behind.popleft()
            if receive.op.src == ANY or self._comm.checked:
                source = self._sources[receive.op.src]
                source.unread.append(receive)
                self._hand_out()
                self._ask(source)
                continue
            try:
                self._take(receive, receive.op.src)
            except Exception as error:
                self._fail(receive, error)
        self._changed.notify_all()

    def _ask(self, source: Source) -> None:
        """Ask gloo for a header for each receive that waits."""
        while len(source.posted) < len(source.unread):
            receive = source.unread[len(source.posted)]
            try:
                source.posted.append((receive, receive.work.post_header(receive.op)))
            except Exception as error:
                self._fail(receive, error)
        if source.posted and not source.reading:
            source.reading = True
            threading.Thread(target=self._read, args=(source,), name="headers", daemon=True).start()

    def _read(self, source: Source) -> None:
        """In a thread: read headers while any is expected."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: source.posted, _IDLE)
                if not source.posted:
                    source.reading = False
                    return
                receive, header = source.posted[0]
            try:
                src, sent = receive.work.read_header(header, receive.op)
                error = None
            except Exception as raised:
                error = raised
            with self._changed:
                if error is not None:
                    if source.unread:
                        self._fail(source.unread[0], error)
                elif sent is None:  # the values have come, too
                    receive.work.source = src
                    self._heard(receive)
                else:
                    if receive.op.src == ANY:  # gloo gives it what is asked of nobody else
                        while self._sources[src].posted:
                            self._changed.wait()
                    self._sources[src].early.append(sent)
                source.posted.popleft()
                self._hand_out()
                self._ask(source)
                self._advance()
            del receive, header  # its tensor must not stay until the next one comes

    def _hand_out(self) -> None:
        """Give what has come to those who wait for it. A wildcard was posted after all others of them."""
        for src in list(self._sources):
            source = self._sources[src]
            while source.early and (source.unread or self._sources[ANY].unread):
                receive = (source.unread or self._sources[ANY].unread)[0]
                self._give(receive, src, source.early.popleft())

    def _give(self, receive: Receive, src: int, sent: tuple) -> None:
        """The message is for the receive. sent: (shape, dtype, label, call, file, line), of which the first four must
        agree.

        A message of a collective that this rank has left is dropped; one of a later collective than the receive's, which
        the sender has left, is kept for a later receive.
        """
        work, ranks = receive.work, self._comm.ranks
        later = order(sent[3], receive.said[3])
        try:
            if later >= 0 and sent[:4] == receive.said[:4]:
                self._take(receive, src)
                return
            if later >= 0:
                work.source = src
                own = ranks[self._comm.rank]
                self._fail(receive, mismatched(ranks[src], sent, own, receive.said))
            if later > 0:
                self._sources[src].early.appendleft(sent)
            else:
                work.drop_values(receive.op, src, sent)
        except Exception as error:
            self._fail(receive, error)

    def _take(self, receive: Receive, src: int) -> None:
        receive.work.take_values(receive.op, src)
        receive.work.source = src
        self._heard(receive)

    def _fail(self, receive: Receive, error: Exception) -> None:
        receive.work.fail(error)
        self._heard(receive)

    def _heard(self, receive: Receive) -> None:
        """It waits for nothing any more."""
        for waiting in (self._behind, self._sources[receive.op.src].unread):
            if receive in waiting:
                waiting.remove(receive)
        receive.heard.set()


# ------------------------------------------------------------
# One batch of sends and receives. What goes wrong with it is kept for whoever waits.


class TransferWork(Work):
    """Sends and receives of one Comm: over gloo a `TorchWork`, over NCCL a `GroupedWork`."""

    def __init__(self, comm: TorchComm, ops: Sequence[Send | Recv]):
        self._comm = comm
        self.ops = ops
        self.source = None
        self.call = comm.call
        self._said = [says(op, comm.checked, comm.call) for op in ops]
        self._running: list = []  # over gloo: (torch's work, op, what must stay alive); over NCCL: torch's works
        # (target, staged): received values on their way to a strided tensor
        self._stage: list[tuple] = []
        self._start: float | None = time.monotonic()
        self._error: BaseException | None = None
        self._over = False
        self._lock = threading.RLock()

    def wait(self) -> None:
        self._comm.start_all()
        self._comm.run.unwaited.pop(self, None)
        self._settle(timedelta(seconds=self._comm.timeout))
        if self._error is not None:
            raise self._error

    def _settle(self, patience: timedelta) -> None:
        """Finish, once."""
        with self._lock:
            if self._over:
                return
            try:
                self._finish(patience)
                for x, staged in self._stage:
                    x.copy_(staged)
                for op in self.ops:
                    if isinstance(op, Send):
                        self._comm.record(op, self._start)
            except BaseException as error:
                self.fail(error)
            self._over = True
            self.ops = ()
            self._running = []
            self._stage = []

    def _staged(self, op: Send | Recv) -> torch.Tensor:
        """The values as they lie in a row; of a strided tensor a copy, from which `_settle` fills it."""
        x = op.x.detach()
        staged = settled(x)
        if staged is not x and isinstance(op, Recv):
            self._stage.append((x, staged))
        return staged

    @abstractmethod
    def _finish(self, patience: timedelta) -> None:
        """Wait for all operations, for each as long as that."""

    def fail(self, error: BaseException) -> None:
        self._error = self._error or error

    def belongs_to(self, comm: TorchComm, call: tuple) -> bool:
        """Whether it is of this collective of `comm`."""
        return self._comm is comm and self.call == call

    def abandon(self) -> None:
        """Nobody will wait for this."""
        self._comm.run.unwaited.pop(self, None)
        with self._lock:
            if not self._over:
                self._give_up()
                self.fail(Mismatch("its collective was given up"))
                self._over = True

    @abstractmethod
    def _give_up(self) -> None:
        """Its receives take nothing more; its sends may still leave."""


# ------------------------------------------------------------
# Over gloo: headers before the values.


_LOST = (
    "closed by peer",
    "reset by peer",
    "Broken pipe",
    "closed connection",
    "Connection refused",
)


class TorchWork(TransferWork):
    """Headers have even tags, values odd ones, so a receive's header can be read before its values."""

    def __init__(self, comm: TorchComm, ops: Sequence[Send | Recv]):
        super().__init__(comm, ops)
        self._thread: threading.Thread | None = None
        both = list(zip(ops, self._said, strict=True))
        self._receives = [Receive(self, op, said) for op, said in both if isinstance(op, Recv)]
        try:
            # Receives first: gloo tells the sender that there is one, and behind our own values the note would wait.
            comm.inbox.post(self._receives)
            for op, said in both:
                if isinstance(op, Send):
                    if comm.checked:
                        self._run(packed_header(said), op, op.dst, 0)
                    if op.x.numel():
                        self._run(self._staged(op), op, op.dst, 1)
        except PeerLost as error:
            self.fail(error)

    def _run(self, x: torch.Tensor, op: Send | Recv, peer: int, tag: int) -> None:
        self._running.append((self._comm.post_bytes(x, op, peer, tag), op, x))

    # What the readers of headers do for a receive (see `Inbox`).

    def post_header(self, op: Recv) -> tuple:
        """Have room for one more header from where `op` expects it; without headers, for the values."""
        if not self._comm.checked:
            return None, self._comm.post_bytes(self._staged(op), op, ANY, 1)
        header = torch.empty(HEADER, dtype=torch.uint8)
        return header, self._comm.post_bytes(header, op, op.src, 0)

    def read_header(self, posted: tuple, op: Recv) -> tuple[int, tuple | None]:
        """Wait for a header: the rank here that sent it, and what it says."""
        header, work = posted
        self._await(work, op, _NEVER)
        src = self._comm.local(work._source_rank()) if op.src == ANY else op.src
        return src, None if header is None else unpacked_header(header)

    def take_values(self, op: Recv, src: int) -> None:
        """Post the receive of an operation's values, if there are any."""
        if op.x.numel():
            self._run(self._staged(op), op, src, 1)

    def drop_values(self, op: Recv, src: int, sent: tuple) -> None:
        """Receive values that nobody wants: they come all the same, and are waited for with the others."""
        values = torch.empty(sent[0], dtype=getattr(torch, sent[1]))
        if values.numel():
            self._run(values, op, src, 1)

    def _await(self, work: dist.Work, op: Send | Recv, patience: timedelta) -> None:
        with naming(self._comm, op):
            work.wait(patience)

    def done(self) -> bool:
        # gloo finishes nothing that no thread waits for
        if self._thread is None and not self._over:
            self._thread = threading.Thread(target=self._settle, args=(_NEVER,), daemon=True)
            self._thread.start()
        if self._thread is not None:
            self._thread.join(1e-3)
        return self._over

    def wait(self) -> None:
        self._comm.run.unwaited.pop(self, None)
        if self._thread is not None:
            ops = self.ops  # which the thread empties when it ends
            self._thread.join(self._comm.timeout)
            if self._thread.is_alive():
                raise missing(self._comm, ops[0])
        super().wait()

    def _finish(self, patience: timedelta) -> None:
        try:
            for receive in self._receives:
                heard = receive.heard.wait(patience.total_seconds())
                if not heard and self._comm.inbox.withdraw([receive]):
                    raise missing(self._comm, receive.op)
            if self._error is not None:
                raise self._error
            for work, op, _ in self._running:
                self._await(work, op, patience)
        except BaseException as error:
            self.fail(error)
            self._give_up()
            raise
        finally:
            self._receives = []  # they know this work: what was received would stay until the next collection

    def _give_up(self) -> None:
        self._comm.inbox.withdraw(self._receives)
        self._leave()

    def _leave(self) -> None:
        """After a failure: what is on its way to us comes, before its memory is used again; our sends stay alive until
        they have been received."""
        for work, op, _ in self._running:
            if isinstance(op, Recv) and isinstance(self._error, Mismatch):
                with contextlib.suppress(Exception):
                    self._await(work, op, timedelta(seconds=self._comm.timeout))
        self._comm.run.leaving += self._running


@contextlib.contextmanager
def naming(comm: TorchComm, op: Send | Recv) -> Iterator[None]:
    """Turn what gloo raises into our errors, with the peer's rank. Of a death it tells one wait, then every post."""
    try:
        yield
    except RuntimeError as error:
        if any(words in str(error) for words in _LOST):
            raise PeerLost(
                op.dst if isinstance(op, Send) else op.src, str(error).splitlines()[0]
            ) from None
        if "imed out" in str(error) or "imeout" in str(error):
            raise missing(comm, op) from None
        raise


def missing(comm: TorchComm, op: Send | Recv) -> RankMissing:
    """What to raise when an operation has not been met within the timeout."""
    verb, to, peer = ("send", "to", op.dst) if isinstance(op, Send) else ("receive", "from", op.src)
    whom = "any rank" if peer == ANY else f"rank {comm.ranks[peer]}"
    words = (
        f"rank {comm.ranks[comm.rank]} waited {comm.timeout:g} s for {verb} of {describe(op.x)} "
        f"{to} {whom}{comm.made_elsewhere(peer)}"
    )
    asked = comm.members if peer == ANY else [comm.members[peer]]
    watch = comm.run.watch
    return RankMissing("\n".join([words, *(watch.where(asked) if watch else [])]))


def packed_header(said: tuple) -> torch.Tensor:
    """What a side says, as bytes on the CPU."""
    return torch.frombuffer(bytearray(packed(said).ljust(HEADER, b"\0")), dtype=torch.uint8)


def unpacked_header(header: torch.Tensor) -> tuple:
    return marshal.loads(header.numpy().tobytes())


# ------------------------------------------------------------
# Over NCCL: what is posted starts together with what else is.
#
# NCCL does the operations of one communicator one after the other. A send and a receive between the same two ranks must
# be in one group, or each rank's first operation waits for the other's second. So posting only notes an operation, and
# at the next wait or collective all that has been posted starts, the operations of each Comm in one group. A Comm whose
# messages all go one way (`Comm.one_way`) has nothing to fear: there each batch starts when it is posted.
#
# The host waits for no values: `wait` tells the current stream to. When checked, the headers travel beside, over gloo,
# and `wait` compares them. The values do not wait for that; where the two sides differ in bytes, neither can end, so the
# Comm is of no use after the Mismatch.


# What NCCL knows (ncclDataType_t); other dtypes travel as bytes.
KNOWN = {
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
}


class GroupedWork(TransferWork):
    """Nothing has started before `TorchComm.start`. `wait` lets the current stream wait for the values, and the host for
    the headers alone."""

    def __init__(self, comm: TorchComm, ops: Sequence[Send | Recv]):
        super().__init__(comm, ops)
        # (work of torch, op, the header's bytes, what this side says)
        self._headers: list[tuple] = []
        self._start = None  # when the device sends is not known

    def done(self) -> bool:
        """Whether all values are there; where there are none to pass, the headers are waited for."""
        self._comm.start_all()
        if all(work.is_completed() for work in self._running):
            self._settle(timedelta(seconds=self._comm.timeout))
        return self._over

    def _finish(self, patience: timedelta) -> None:
        self._comm.check_usable()
        for work, op, header, said in self._headers:
            with naming(self._comm.on_host(), op):
                work.wait(patience)
            if isinstance(op, Recv):
                self._compare(op, unpacked_header(header), said)
        for work in self._running:
            work.wait()

    def _compare(self, op: Recv, sent: tuple, said: tuple) -> None:
        if sent[:4] == said[:4]:
            return
        ranks = self._comm.on_host().ranks
        error = mismatched(ranks[op.src], sent, ranks[self._comm.rank], said)
        if _nbytes(sent) != _nbytes(said):
            self._comm.lose(error)
        raise error

    def _give_up(self) -> None:
        if self in self._comm.posted:
            self._comm.posted.remove(self)

    def post_headers(self) -> list[dist.P2POp]:
        """Let the headers leave and come; returns the operations that carry values, for the group."""
        comm = self._comm
        operations = []
        for op, said in zip(self.ops, self._said, strict=True):
            sending = isinstance(op, Send)
            peer = op.dst if isinstance(op, Send) else op.src
            if comm.checked:
                header = packed_header(said) if sending else torch.empty(HEADER, dtype=torch.uint8)
                work = comm.on_host().post_bytes(header, op, peer, 0, comm.tag)
                self._headers.append((work, op, header, said))
            if op.x.numel() == 0:  # both sides know, and leave it out
                continue
            staged = self._staged(op)
            values = staged if staged.dtype in KNOWN else staged.reshape(-1).view(torch.uint8)
            verb = dist.isend if sending else dist.irecv
            peer = comm.ranks[peer]
            operations.append(dist.P2POp(verb, values, group=comm.group, group_peer=peer))
        return operations

    def run_with(self, group: list[dist.Work]) -> None:
        """Its values are on their way, in this group."""
        self._running = group


def _nbytes(said: tuple) -> int:
    shape, dtype, *_ = said
    return torch.Size(shape).numel() * getattr(torch, dtype).itemsize


# ------------------------------------------------------------
# A group as a Comm: what is posted, split and asked of it, over gloo and over NCCL.


@dataclass(eq=False)
class _Run:
    """What a TorchComm shares with all Comms that are made from it."""

    checked: bool
    timeout: float
    trace: Trace | None
    counts: dist.Store  # how many Comms of the group each rank has made
    number: int  # of the one that they are made from, among those of its group
    unwaited: dict[Work, None] = field(default_factory=dict)  # for `flush`
    posting: dict[TorchComm, None] = field(default_factory=dict)  # those with what has not started
    leaving: list = field(default_factory=list)  # sends that failed: they must stay alive
    tracing: threading.Lock = field(default_factory=threading.Lock)
    watch: Watch | None = None  # it knows where the other ranks are


class TorchComm(Comm):
    """`group`: any process group (default: the world's).

    checked: send headers; None: if the group can carry CPU tensors.  timeout: seconds a wait may take.
    trace: where messages are noted.
    All ranks of the group make it, and several in the same order. Over gloo it raises PeerLost when the other side is
    dead, and RankMissing when it does not come in time. Over NCCL the host does not wait for values: nobody is told of
    a death but by torchrun, which ends the other ranks, or by NCCL's watchdog, which ends the process after `timeout`.
    Under torchrun `from_env` gives it a `Watch` (flight.py): RankMissing then says where the other ranks are, and over NCCL
    a call that takes longer is told on standard error before the watchdog ends the process.

    Raises RuntimeError without a group, TypeError for what is no process group, and ValueError where headers are asked for
    and the group carries no CPU tensors.

    >>> import tempfile
    >>> import torch
    >>> import torch.distributed as dist
    >>> from minidist import collectives, launch
    >>> from minidist.comm import TorchComm
    >>> def process(comm, url):
    ...     dist.init_process_group("gloo", url, rank=comm.rank, world_size=comm.size)
    ...     comm = TorchComm()  # of the group that PyTorch has made
    ...     return collectives.all_reduce_(comm, torch.tensor([comm.rank + 1.0])).item()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     launch(process, 2, f"file://{folder}/meeting_point")
    [3.0, 3.0]
    """

    members: tuple[int, ...]

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        checked: bool | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        trace: Trace | None = None,
    ):
        check_timeout(timeout)
        if checked not in (None, True, False):
            raise ValueError(f"checked is True, False or None, not {checked!r}")
        if group is None and not dist.is_initialized():
            raise RuntimeError(
                "torch.distributed has no group yet: from_env() makes one under torchrun, "
                "dist.init_process_group(…) elsewhere"
            )
        if not isinstance(group, dist.ProcessGroup | None):
            raise TypeError(
                f"a TorchComm is made of a process group of torch.distributed, not of {group!r}"
            )
        group = _get_default_group() if group is None else group
        backends = dist.get_backend_config(group)
        nccl, cpu = "nccl" in backends, "cpu:" in backends
        if checked and not cpu:
            raise ValueError(
                f"a checked TorchComm sends its headers over gloo, and this group has {backends}"
            )
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        counts = _get_process_group_store(group)
        number = counts.add(f"minidist/comms/{rank}", 1)
        self.run = _Run(cpu if checked is None else checked, timeout, trace, counts, number)
        everyone, channel = list(range(size)), "main" if number == 1 else f"main {number}"
        host = None
        if nccl and cpu:
            host = self._opened(group, everyone, rank, f"{channel}/host", nccl=False)
        if nccl and number > 1:
            group = named_group(group, everyone, channel, timeout, _of_gpus(group))
        self._open(self.run, group, everyone, rank, channel, nccl=nccl, host=host)

    def _open(
        self,
        run: _Run,
        group: dist.ProcessGroup,
        ranks: list[int],
        rank: int,
        channel: str,
        *,
        nccl: bool,
        host: TorchComm | None = None,
    ) -> None:
        """ranks: this Comm's ranks in `group`.  host: for a Comm over NCCL the one of these ranks over gloo, if there is
        one already."""
        self.run = run
        self.checked, self.timeout = run.checked, run.timeout
        self.compares_calls = run.checked and not nccl
        self.group = group
        self.ranks = ranks
        self.rank = rank
        self.size = len(ranks)
        self.members = tuple(dist.get_global_rank(group, r) for r in ranks)
        self.channel = channel
        self.tag = crc32(channel.encode()) % 2**30
        self.nccl = nccl
        self.any_source = not nccl
        self.algorithm = "native" if nccl else "ring"
        # Another backend than NCCL that works on streams, such as the one of the tests, brings what it has in place of
        # `torch.cuda` along.
        self.gpu = getattr(group, "gpu", torch.cuda)
        self.device = torch.device("cpu")
        if nccl:
            kind = getattr(group, "device_type", "cuda")
            self.device = torch.device(kind, self.gpu.current_device())
            warm(group, self.device)
        self._host = host
        self.inbox = Inbox(self)  # over gloo
        self.posted: list[GroupedWork] = []  # over NCCL: not started yet
        self.broken: CommError | None = None  # over NCCL: why it is of no use any more
        self.native = Native(self)
        self._lanes: dict[int, StreamLane | ThreadLane] = {}

    def _opened(self, *place, nccl: bool, host: TorchComm | None = None) -> TorchComm:
        """A new Comm that shares this one's run; its place: see `_open`."""
        other = object.__new__(TorchComm)
        other._open(self.run, *place, nccl=nccl, host=host)
        return other

    def _beside(self, ranks: list[int], rank: int, name: str) -> TorchComm:
        """A Comm of some of these ranks on a channel of its own. `ranks`: in `group`."""
        channel = f"{self.channel}/{name}"
        if not self.nccl:
            return self._opened(self.group, ranks, rank, channel, nccl=False)
        host = self._host and self._host._beside([self._host.ranks[r] for r in ranks], rank, name)
        group = named_group(self.group, ranks, channel, self.timeout, _of_gpus(self.group))
        return self._opened(group, list(range(len(ranks))), rank, channel, nccl=True, host=host)

    def on_host(self) -> TorchComm:
        if not self.nccl:
            return self
        if self._host is None:  # a group for GPUs alone
            channel = f"{self.channel}/host"
            group = named_group(self.group, self.ranks, channel, self.timeout, "gloo")
            everyone = list(range(self.size))
            self._host = self._opened(group, everyone, self.rank, channel, nccl=False)
        return self._host

    def local(self, rank: int) -> int:
        """This Comm's number for a rank of `group`."""
        return self.ranks.index(rank)

    def _post(self, ops: Sequence[Send | Recv], waited: bool = False) -> Work:
        if not self.nccl:
            work = TorchWork(self, ops)
            self.run.unwaited[work] = None
            return work
        if any(isinstance(op, Recv) and op.src == ANY for op in ops):
            raise ValueError("NCCL cannot receive from any rank: name the source")
        self.check_usable()
        work = GroupedWork(self, ops)
        self.run.unwaited[work] = None
        self.posted.append(work)
        self.run.posting[self] = None
        if self.one_way:
            self.start()
        return work

    def start(self) -> None:
        """Over NCCL: start all that has been posted here, in one group."""
        if self.posted:
            works, self.posted = self.posted, []
            self.run.posting.pop(self, None)
            batch = [op for work in works for op in work.post_headers()]
            group = dist.batch_isend_irecv(batch) if batch else []
            for work in works:
                work.run_with(group)

    def start_all(self) -> None:
        """Over NCCL: start what has been posted on this Comm, and on all made from the same one; else each might wait
        for another."""
        for comm in list(self.run.posting):
            comm.start()

    def post_bytes(
        self, x: torch.Tensor, op: Send | Recv, peer: int, tag: int, channel: int | None = None
    ) -> Any:  # torch's Work; None only outside the group
        """Over gloo: let an operation's header (tag 0) or its values (1) leave for `peer`, or come from there."""
        tag += 2 * (self.tag if channel is None else channel)
        with naming(self, op):
            if isinstance(op, Send):
                return dist.isend(x, group=self.group, group_dst=self.ranks[peer], tag=tag)
            src = None if peer == ANY else self.ranks[peer]
            return dist.irecv(x, group=self.group, group_src=src, tag=tag)

    def lose(self, error: Mismatch) -> None:
        """Give the communicator up: a transfer of it can never end."""
        self.broken = CommError(
            "this Comm's communicator was given up after a mismatch, which NCCL does not survive: end the "
            f"run, and start it again.\n{error}"
        )
        with contextlib.suppress(Exception):
            self.group.abort()

    def check_usable(self) -> None:
        """CommError after a mismatch that the communicator did not survive."""
        if self.broken is not None:
            raise self.broken

    def record(self, op: Send, start: float | None) -> None:
        """Note a message in the trace, if there is one. start: None: when is not known, as the device does it."""
        if self.run.trace is None:
            return
        now = time.monotonic()
        nbytes = op.x.numel() * op.x.element_size()
        src, dst = self.members[self.rank], self.members[op.dst]
        lane = lane_of(self.channel)
        with self.run.tracing:  # lanes record, too
            self.run.trace.add(src, dst, nbytes, start or now, now, now, op.label, lane)

    def _abandon(self, call: tuple) -> None:
        for work in list(self.run.unwaited):
            if isinstance(work, TransferWork) and work.belongs_to(self, call):
                work.abandon()

    def made_elsewhere(self, peer: int) -> str:
        """For a timeout: that the other side has made fewer Comms of this group than this rank, if it has."""
        number, counts = self.run.number, self.run.counts
        key = f"minidist/comms/{self.ranks[peer]}"
        made = int(counts.get(key)) if peer != ANY and counts.check([key]) else number
        if made >= number:
            return ""
        return (
            f"; this is Comm number {number} of its group, and that rank has made {made}: "
            "all ranks make them, in the same order"
        )

    def _subgroup(self, ranks: list[int], name: str) -> Comm:
        return self._beside([self.ranks[r] for r in ranks], ranks.index(self.rank), name)

    def _exchange(self, row: list[int]) -> list[list[int]]:
        self.start_all()
        return self.on_host()._exchange(row) if self.nccl else super()._exchange(row)

    def stream(self, fn: Callable, *args, lane: int = 0) -> Work:
        check_job(fn)
        if lane not in self._lanes:
            self.start_all()
            comm = self._beside(self.ranks, self.rank, f"lane {lane}")
            if self.nccl:
                self._lanes[lane] = StreamLane(comm, self.gpu, self.run.unwaited)
            else:
                self._lanes[lane] = ThreadLane(comm, f"lane {lane}", self.run.unwaited)
        return self._lanes[lane].submit(fn, args)

    def link(self, dst: int, src: int | None = None) -> Link:
        ends(self, dst, src)
        # rough, to choose an algorithm by: between GPUs, and over sockets of one machine
        return Link(10e-6, 1 / 100e9) if self.nccl else Link(50e-6, 1 / 2e9)

    def flush(self) -> None:
        """Wait for all that was posted; raises what went wrong in it."""
        self.start_all()
        while self.run.unwaited:
            next(iter(self.run.unwaited)).wait()


def _of_gpus(group: dist.ProcessGroup) -> str:
    """The backend of a group that carries GPUs' tensors, such as "nccl"."""
    return BackendConfig(dist.Backend(dist.get_backend_config(group))).get_device_backend_map()[
        "cuda"
    ]


def from_env(
    backend: str | None = None,
    seed: int | None = None,
    checked: bool | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    trace: Trace | None = None,
) -> TorchComm:
    """The Comm of a process that torchrun started: NCCL where there are GPUs, else gloo.

    backend: "nccl" or "gloo" to insist on one, or another that is registered with PyTorch.  seed: seeds each rank's
    random numbers, as in a World; None leaves them as they are.  timeout: seconds that a wait may take, in any group
    made from this Comm.  trace: a `Trace(n)` that records what this rank sends.
    An uncaught exception ends the process at once. Otherwise its groups would wait for peers that wait for it, and
    torchrun, which ends the other processes, would not notice the failure.
    Raises RuntimeError outside torchrun, where a restart would hang, and where this host has no interface that other
    hosts can reach; ValueError if there are more local ranks than GPUs.

    In this example, two processes set the variables that torchrun would set for them:

    >>> import os
    >>> import socket
    >>> import torch
    >>> from minidist import from_env, launch
    >>> from minidist.collectives import all_reduce_
    >>> def process(comm, port):
    ...     place = {"RANK": comm.rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    ...     place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ...     os.environ.update({name: str(value) for name, value in place.items()})
    ...     comm = from_env(backend="gloo")  # the only line of a script for torchrun
    ...     return all_reduce_(comm, torch.tensor([comm.rank + 1.0])).item()
    >>> with socket.create_server(("127.0.0.1", 0)) as free:
    ...     port = free.getsockname()[1]
    >>> launch(process, 2, port)
    [3.0, 3.0]
    """
    check_timeout(timeout)
    if seed is not None:
        seed = check_seed(seed)
    if backend not in (None, "gloo", "nccl") and str(backend).upper() not in dist.Backend._plugins:
        raise ValueError(f'a backend is "gloo" or "nccl", not {backend!r}')
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise RuntimeError(
            "RANK and WORLD_SIZE are not set: start with `torchrun --nproc-per-node 4 …`, "
            "or use World(4).run(program) or launch(program, 4)"
        )
    _refuse_stale_store()
    local = int(os.environ.get("LOCAL_RANK", 0))
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    backend = backend or ("nccl" if gpus else "gloo")
    device = None
    if backend == "nccl":
        if ranks_here > gpus:
            only = f"{ranks_here} ranks on this machine and {gpus} GPUs"
            raise ValueError(f'{only}: NCCL needs one each (or backend="gloo")')
        torch.cuda.set_device(local)
        device = torch.device("cuda", local)
    if not dist.is_initialized():
        if int(os.environ["WORLD_SIZE"]) > ranks_here:
            name_interface(os.environ.get("MASTER_ADDR", "localhost"))
        backends = "cpu:gloo,cuda:nccl" if backend == "nccl" else backend
        dist.init_process_group(backends, timeout=timedelta(seconds=timeout), device_id=device)
        atexit.register(close)
        sys.excepthook = _ends_the_process(sys.excepthook)
    if seed is not None:
        seed_all(seed_of(seed, dist.get_rank()))
    comm = TorchComm(checked=checked, timeout=timeout, trace=trace)
    store = _get_process_group_store(comm.group)
    comm.run.watch = Watch(store, comm.rank, comm.size, timeout, tells=comm.nccl)
    atexit.register(comm.run.watch.stop)
    if comm.nccl:
        atexit.register(_start_the_rest, [comm])
    return comm


def _start_the_rest(comms: list[TorchComm]) -> None:
    """Before the groups are left: start what was posted, and that nobody has waited for. Then let go of the Comm."""
    comms.pop().start_all()


def _ends_the_process(report: Callable) -> Callable:
    """A `sys.excepthook` that says what `report` says, and leaves without a word to the process groups."""

    def hook(kind, error, trace) -> None:
        report(kind, error, trace)
        leave(1)

    return hook


def leave(status: int) -> None:
    """End this process now, its groups as they are: peers that wait for it learn of its end within seconds."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _refuse_stale_store() -> None:
    """torchrun's shared store keeps the addresses of ranks that died; gloo would wait for them (seen in torch 2.13)."""
    asked = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0))
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if asked and shared and os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1":
        raise RuntimeError(
            f"--max-restarts {asked}: restarted ranks would wait for the addresses of dead ones; "
            "start torchrun with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in its environment"
        )


def close() -> None:
    """Destroy the default group. Garbage is collected first: gloo can abort when a work outlives its group."""
    if dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()
