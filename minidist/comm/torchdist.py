"""Any torch.distributed group as a `Comm`: what runs under torchrun, on one machine or many.

A Comm is sends and receives, and all else is built on them. When checked, each message is two: a header of 512
bytes (shape, dtype, label, line of the program) and the values. Without it gloo returns a silently wrong result
when shapes differ.

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
import functools
import gc
import marshal
import os
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from zlib import crc32

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import BackendConfig, _get_process_group_store

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
    agree,
    describe,
    mismatch,
    order,
)
from .cluster import ends
from .message import HEADER, packed, says, settled, side
from .nccl import Native, StreamLane, named_group, warm
from .program import DEFAULT_TIMEOUT, check_seed, check_timeout, seed_all, seed_of
from .trace import Trace, lane_of

# ------------------------------------------------------------
# The network interface at which gloo should wait for other hosts.
#
# Gloo waits at the address of this host's name. On many systems that is loopback (Debian writes `127.0.1.1 NAME` into
# /etc/hosts), where no other host can connect, and the run would end in a timeout.


ADDRESS_OF = 0x8915  # Linux's SIOCGIFADDR
# an address of documentation, to which nothing is sent: only the route there is asked for
ANYWHERE = "192.0.2.1"


def name_interface(master: str) -> None:
    """Set GLOO_SOCKET_IFNAME if gloo would choose loopback: to the interface towards `master`, the address at which all
    ranks meet, else to the one of the default route, else to the only one.

    Nothing happens if it is set already, or if `master` is "localhost", so that all are on this machine. Raises
    RuntimeError if there are several interfaces, and no route prefers one.
    """
    if sys.platform != "linux" or "GLOO_SOCKET_IFNAME" in os.environ or is_literal_loopback(master):
        return
    name = socket.gethostname()
    if not is_loopback(own := address_of(name)):
        return
    found = interfaces()
    routes = [
        found[address] for address in map(address_towards, (master, ANYWHERE)) if address in found
    ]
    if not routes and len(found) > 1:
        raise RuntimeError(
            f"this host's name, {name}, stands for {own}, where no other host can connect, and it has "
            f"{len(found)} network interfaces: set GLOO_SOCKET_IFNAME to the one through which the "
            f"hosts reach each other ({', '.join(found.values())})"
        )
    for interface in [*routes, *found.values()][:1]:
        os.environ["GLOO_SOCKET_IFNAME"] = interface


def is_literal_loopback(host: str) -> bool:
    """Whether it says itself that it is this machine; a name may stand for loopback only here."""
    return host in ("localhost", "::1") or host.startswith("127.")


def is_loopback(address: str) -> bool:
    return address.startswith("127.")


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
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no address
                answer = fcntl.ioctl(asked, ADDRESS_OF, struct.pack("256s", name.encode()))
                address = socket.inet_ntoa(answer[20:24])
                if not is_loopback(address):
                    found[address] = name
    return found


# ------------------------------------------------------------
# Who reads the headers of posted receives over gloo, where nothing moves unless a thread waits for it.
#
# A message is a header and its values. The values can be received once the header has been read, and only then can the
# sender go on. So whoever waits, for whatever it is, must see to it that the headers of all posted receives are read,
# or two ranks that have posted everything wait for each other:
#
#     rank 0   a = isend(x, 1);  b = irecv(y, 1);  a.wait()      a is over when rank 1 has read its header,
#     rank 1   a = isend(x, 0);  b = irecv(y, 0);  a.wait()      which it does while it waits for its own a
#
# The waiting thread reads the headers of one source itself: where nothing else is outstanding (a blocking call, a
# step of a ring) no other thread is woken. For each other source from which a header is expected, a thread is started,
# which ends when none is expected any more. Headers from one source are read in the order of posting.
#
# A receive from any source is met by the first message that no receive before it takes, and what is posted after it
# comes after it (as in MPI): it is posted to gloo only when the wildcard has been met.


class Receive:
    """A posted receive. `read`: its header has been read, so that its values are on their way or it has failed."""

    __slots__ = ("op", "read", "said", "source", "work")

    def __init__(self, work, op, said: tuple):
        self.work = work
        self.op = op
        self.said = said
        self.read = False
        self.source = None


class Source:
    """Headers that a Comm expects from one rank, or from any.

    unread: receives in the order of posting.  posted: headers that gloo has been asked for; they may outnumber the
    receives.  early: what has been read and belongs to a later receive.  busy: a thread is reading.
    """

    __slots__ = ("busy", "driven", "early", "posted", "unread")

    def __init__(self):
        self.unread = deque()
        self.posted = deque()
        self.early = deque()
        self.busy = self.driven = False  # driven: a thread of its own will read on


class Progress:
    """All that the Comms of a process expect."""

    def __init__(self):
        self.changed = threading.Condition()
        self.leaving: list = []  # sends of operations that failed: they must stay alive
        self._expecting: dict[Source, None] = {}  # with unread receives
        self._waiting = 0  # threads

    def post(self, comm, receives: list[Receive]) -> None:
        with self.changed:
            for receive in receives:
                comm.behind.append(receive)
            self._release(comm)
        if self._waiting and not receives[0].work.waited:
            self._drive()

    def _release(self, comm) -> None:
        """Ask gloo for all that no wildcard comes before."""
        while comm.behind and not comm.wild:
            receive = comm.behind.popleft()
            work, op = receive.work, receive.op
            try:
                if op.src != ANY and not comm.checked:
                    work.take(op, comm.ranks[op.src])
                    receive.read = True
                    continue
                comm.wild = op.src == ANY
                source = receive.source = comm.sources.setdefault(op.src, Source())
                source.unread.append(receive)
                self._expecting[source] = None
                if not comm.checked:
                    source.posted.append(work.take(op, None))
                elif len(source.posted) + len(source.early) < len(source.unread):
                    source.posted.append(work.listen(op))
            except Exception as error:
                work.fail(error)
                self._over(comm, receive)

    def _over(self, comm, receive: Receive) -> None:
        """The header has been read, or will never be. The condition is held."""
        source = receive.source
        if source is not None and receive in source.unread:
            source.unread.remove(receive)
            if not source.unread:
                self._expecting.pop(source, None)
        receive.read = True
        if receive.op.src == ANY:
            comm.wild = False
            self._release(comm)
        self.changed.notify_all()

    def withdraw(self, receives: list[Receive]) -> None:
        """These take nothing any more."""
        with self.changed:
            for receive in receives:
                if not receive.read:
                    comm = receive.work._comm
                    if receive in comm.behind:
                        comm.behind.remove(receive)
                    self._over(comm, receive)

    @contextmanager
    def waiting(self, work, receives: list[Receive], patient: bool) -> Iterator[None]:
        """While a thread waits for a work: first the headers of its receives are read."""
        with self.changed:
            self._waiting += 1
        try:
            unread = [receive for receive in receives if not receive.read]
            if unread:
                self._drive(work, unread[0].source)
                for receive in unread:
                    self._read(receive.source, receive, patient)
            if self._expecting:
                self._drive(work)
            yield
        finally:
            with self.changed:
                self._waiting -= 1

    def _drive(self, work=None, own: Source | None = None) -> None:
        """Start a thread for each source that is not `own` and from which a header is expected. What another thread
        posted and waits for at once is its own affair."""
        with self.changed:
            for source in self._expecting:
                needed = any(r.work is work or not r.work.waited for r in source.unread)
                if source is not own and not source.driven and needed:
                    source.driven = True
                    threading.Thread(
                        target=self._read, args=(source,), name="headers", daemon=True
                    ).start()

    def _read(
        self, source: Source | None, until: Receive | None = None, patient: bool = True
    ) -> None:
        """Read headers until that of `until` has been read; None: until no more are expected."""
        limit = None if patient else time.monotonic() + until.work._comm.timeout
        while True:
            with self.changed:
                while True:
                    if until is None and not source.unread:
                        source.driven = False
                        return
                    if until is not None:
                        if until.read:
                            return
                        source = until.source
                    if source is not None and source.unread and not source.busy:
                        break
                    left = None if limit is None else limit - time.monotonic()
                    if left is not None and left <= 0:
                        raise until.work.missing(until.op)
                    self.changed.wait(left)
                source.busy = True
                receive = source.unread[0]
            self._read_one(source, receive, patient)

    def _read_before(self, comm, src: int) -> None:
        """A wildcard has heard from `src`: what receives from there were posted before it have heard, too, and their
        values come first."""
        with self.changed:
            unread = list(comm.sources[src].unread) if src in comm.sources else []
        for receive in unread:
            self._read(receive.source, receive)

    def _read_one(self, source: Source, receive: Receive, patient: bool) -> None:
        """Wait for the next header of a source, and give it to the receive, if it is for it."""
        work = receive.work
        op = receive.op
        comm = receive.work._comm
        verdict, found = "both", None
        try:
            if not comm.checked:
                work.came(source.posted.popleft(), op, patient)
            elif source.early:
                found = source.early.popleft()
            else:
                if not source.posted:
                    source.posted.append(work.listen(op))
                found = work.heard(source.posted.popleft(), op, patient)
                if op.src == ANY:
                    self._read_before(comm, found[0])
            if found is not None and receive.read:  # withdrawn while we waited
                verdict = "keep"
            elif found is not None:
                verdict = work.match(receive, *found)
        except Exception as error:
            work.fail(error)
        with self.changed:
            source.busy = False
            if verdict == "keep":
                source.early.appendleft(found)
            if verdict != "drop" and not receive.read:
                wild = op.src == ANY
                self._over(comm, receive)
                if not wild:
                    return
            self.changed.notify_all()
        if op.src == ANY:
            self._drive()


@functools.cache
def progress() -> Progress:
    """This process's: waiting on one Comm drives what was posted on the others."""
    return Progress()


# ------------------------------------------------------------
# One batch of sends and receives over gloo, with their headers.


_LOST = (
    "closed by peer",
    "reset by peer",
    "Broken pipe",
    "closed connection",
    "Connection refused",
)
_NEVER = timedelta(days=365)


class TorchWork(Work):
    """Headers have even tags, values odd ones, so a receive's header can be read before its values."""

    __slots__ = (
        "_comm",
        "_error",
        "_lock",
        "_over",
        "_receives",
        "_running",
        "_said",
        "_stage",
        "_start",
        "_thread",
        "call",
        "ops",
        "source",
        "waited",
    )

    def __init__(self, comm, ops, waited: bool):
        self._comm = comm
        self.ops = ops
        self.source = None
        self.call = comm.call
        self.waited = waited
        self._start = time.monotonic()
        self._error = None
        self._over = False
        self._thread = None
        self._lock = threading.RLock()
        self._running: list[tuple] = []  # (work of torch, op, what must stay alive)
        # (target, staged): received values on their way to a strided tensor
        self._stage: list[tuple] = []
        self._receives: list[Receive] = []
        self._said = [says(op, comm.checked, comm.call) for op in ops]
        self._post()
        comm.unwaited[self] = None

    def _peer(self, peer: int) -> int | None:
        return None if peer == ANY else self._comm.ranks[peer]

    def _send(self, x: torch.Tensor, op, tag: int) -> None:
        with naming(self._comm, op):
            work = dist.isend(
                x,
                group=self._comm.group,
                group_dst=self._peer(op.dst),
                tag=2 * self._comm.tag + tag,
            )
        self._running.append((work, op, x))

    def _receive(self, x: torch.Tensor, op, src: int | None, tag: int):
        with naming(self._comm, op):
            return dist.irecv(
                x, group=self._comm.group, group_src=src, tag=2 * self._comm.tag + tag
            )

    def _post(self) -> None:
        both = list(zip(self.ops, self._said, strict=True))
        self._receives = [Receive(self, op, said) for op, said in both if not isinstance(op, Send)]
        try:
            # Receives first: gloo tells the sender that there is one, and behind our own values the note would wait.
            if self._receives:
                self._comm.progress.post(self._comm, self._receives)
            for op, said in both:
                if isinstance(op, Send):
                    if self._comm.checked:
                        self._send(packed_header(said), op, 0)
                    if op.x.numel():
                        self._send(settled(op.x.detach()), op, 1)
        except PeerLost as error:
            self._error = error

    # What the readers of headers do for a receive (see `Progress`).

    def listen(self, op) -> tuple:
        """Post the receive of one more header from where `op` expects it."""
        header = torch.empty(HEADER, dtype=torch.uint8)
        return header, self._receive(header, op, self._peer(op.src), 0)

    def heard(self, posted: tuple, op, patient: bool) -> tuple[int, tuple]:
        """Wait for a header: the rank here that sent it, and what it says."""
        header, work = posted
        self._finish(work, op, patient)
        src = self._comm.local(work._source_rank()) if op.src == ANY else op.src
        return src, unpacked_header(header)

    def match(self, receive: Receive, src: int, sent: tuple) -> str:
        """What to do with the receive and a message: "both" belong together; "drop" the message of a collective that
        this rank has left, or "keep" it for a later one, because it was this receive's that its sender has left."""
        said = receive.said
        later = order(sent[3], said[3])
        if later < 0:
            self._swallow(receive.op, src, sent)
            return "drop"
        self.source = src
        if sent[:4] == said[:4]:
            self.take(receive.op, self._comm.ranks[src])
            return "both"
        ranks = self._comm.ranks
        self._error = self._error or Mismatch(
            mismatch(side(ranks[src], sent), side(ranks[self._comm.rank], said))
        )
        if later > 0:
            return "keep"
        self._swallow(receive.op, src, sent)
        return "both"

    def take(self, op, src: int | None):
        """Post the receive of an operation's values; None if there are none."""
        x = op.x.detach()
        staged = settled(x)
        work = self._receive(staged, op, src, 1) if x.numel() else None
        if work is not None and src is not None:
            self._running.append((work, op, staged))
        if staged is not x:
            self._stage.append((x, staged))
        if not self._comm.checked:
            self.source = None if src is None else op.src
        return work

    def came(self, work, op, patient: bool) -> None:
        """Wait for the values of a wildcard receive that has no header."""
        if work is not None:
            self._finish(work, op, patient)
            self.source = self._comm.local(work._source_rank())

    def fail(self, error: Exception) -> None:
        self._error = self._error or error

    def _swallow(self, op, src: int, sent: tuple) -> None:
        """Receive values that nobody wants: they come all the same."""
        values = torch.empty(sent[0], dtype=getattr(torch, sent[1]))
        if values.numel():
            self._finish(self._receive(values, op, self._comm.ranks[src], 1), op)

    def _finish(self, work, op, patient: bool = False) -> None:
        """Wait for a work of torch."""
        with naming(self._comm, op):
            work.wait(_NEVER if patient else self._comm.patience)

    def missing(self, op) -> RankMissing:
        return missing(self._comm, op)

    def done(self) -> bool:
        # gloo finishes nothing that no thread waits for
        if self._thread is None and not self._over:
            self._thread = threading.Thread(target=self._settle, args=(True,), daemon=True)
            self._thread.start()
        if self._thread is not None:
            self._thread.join(1e-3)
        return self._over

    def wait(self) -> None:
        self._comm.unwaited.pop(self, None)
        if self._thread is not None:
            self._thread.join(self._comm.timeout)
            if self._thread.is_alive():
                raise self.missing(self.ops[0])
        self._settle()
        if self._error is not None:
            raise self._error

    def _settle(self, patient: bool = False) -> None:
        """Finish, once. What goes wrong is kept for `wait`."""
        with self._lock:
            if self._over:
                return
            try:
                with self._comm.progress.waiting(self, self._receives, patient):
                    for work, op, _ in self._running if self._error is None else ():
                        self._finish(work, op, patient)
                for x, staged in self._stage if self._error is None else ():
                    x.copy_(staged)
            except BaseException as error:
                self._error = error
            if self._error is not None:
                self._leave()
            self._record()
            self._over = True

    def abandon(self) -> None:
        """Nobody will wait for this: its receives take nothing more, its sends may still leave."""
        self._comm.unwaited.pop(self, None)
        with self._lock:
            if not self._over:
                self._comm.progress.withdraw(self._receives)
                self._leave()
                self._error, self._over = (
                    self._error or Mismatch("its collective was given up"),
                    True,
                )

    def _leave(self) -> None:
        """After a failure: what is on its way to us comes, before its memory is used again; our sends stay alive until
        they have been received."""
        for work, op, _ in self._running:
            if not isinstance(op, Send) and isinstance(self._error, Mismatch):
                with contextlib.suppress(Exception):
                    self._finish(work, op)
        self._comm.progress.leaving += self._running

    def _record(self) -> None:
        comm = self._comm
        ops = self.ops
        self.ops = ()
        self._running = []
        self._stage = []
        self._receives = []
        for op in ops if comm.trace is not None else ():
            if isinstance(op, Send):
                comm.record(op, self._start)


@contextlib.contextmanager
def naming(comm, op):
    """What gloo says of an operation's failure, as our errors. Of a death it tells one wait, then every post."""
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


def missing(comm, op) -> RankMissing:
    """What to raise when an operation has not been met within the timeout."""
    verb, to, peer = ("send", "to", op.dst) if isinstance(op, Send) else ("receive", "from", op.src)
    whom = "any rank" if peer == ANY else f"rank {comm.ranks[peer]}"
    return RankMissing(
        f"rank {comm.ranks[comm.rank]} waited {comm.timeout:g} s for {verb} of {describe(op.x)} "
        f"{to} {whom}{comm.made_elsewhere(peer)}"
    )


def packed_header(said: tuple) -> torch.Tensor:
    """What a side says, as bytes on the CPU."""
    data = packed(said)
    header = torch.zeros(HEADER, dtype=torch.uint8)
    header[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return header


def unpacked_header(header: torch.Tensor) -> tuple:
    return marshal.loads(header.numpy().tobytes())


# ------------------------------------------------------------
# One batch of sends and receives over NCCL, where what is posted starts together with what else is.
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


class GroupedWork(Work):
    """Sends and receives of one Comm. Nothing has started before `start_together`."""

    __slots__ = (
        "_comm",
        "_error",
        "_headers",
        "_over",
        "_running",
        "_said",
        "_stage",
        "call",
        "ops",
        "source",
    )

    def __init__(self, comm, ops):
        self._comm = comm
        self.ops = ops
        self.source = None
        self.call = comm.call
        self._over, self._error = False, None
        self._said = [says(op, comm.checked, comm.call) for op in ops]
        # (work of torch, op, the header's bytes, what this side says)
        self._headers: list[tuple] = []
        self._running: list[dist.Work] = []
        # (target, staged): received values on their way to a strided tensor
        self._stage: list[tuple] = []
        comm.unwaited[self] = None

    def done(self) -> bool:
        """Whether all values are there; where there are none to pass, the headers are waited for."""
        self._comm.start_all()
        if not self._over and all(work.is_completed() for work in self._running):
            self._settle()
        return self._over

    def wait(self) -> None:
        """Let the current stream wait for the values; the host waits for the headers alone."""
        self._comm.start_all()
        self._comm.unwaited.pop(self, None)
        self._settle()
        if self._error is not None:
            raise self._error

    def _settle(self) -> None:
        """Finish, once. What goes wrong is kept for `wait`."""
        if self._over:
            return
        self._over = True
        try:
            self._comm.check_usable()
            self._compare()
            for work in self._running:
                work.wait()
            for x, staged in self._stage:
                x.copy_(staged)
            self._record()
        except BaseException as error:
            self._error = error
        self.ops = ()
        self._running = []
        self._stage = []
        self._headers = []

    def _compare(self) -> None:
        comm = self._comm
        for work, op, header, said in self._headers:
            with naming(comm.on_host(), op):
                work.wait(comm.patience)
            if isinstance(op, Send):
                continue
            sent = unpacked_header(header)
            if sent[:4] != said[:4]:
                ranks = comm.on_host().ranks
                error = Mismatch(mismatch(side(ranks[op.src], sent), side(ranks[comm.rank], said)))
                if _nbytes(sent) != _nbytes(said):
                    comm.lose(error)
                raise error

    def abandon(self) -> None:
        """Nobody will wait for this."""
        self._comm.unwaited.pop(self, None)
        if self in self._comm.posted:
            self._comm.posted.remove(self)
        if not self._over:
            self._over, self._error = True, Mismatch("its collective was given up")

    def _record(self) -> None:
        comm = self._comm
        for op in self.ops if comm.trace is not None else ():
            if isinstance(op, Send):
                comm.record(op)

    def begin(self) -> list[dist.P2POp]:
        """Send and await the headers; the operations that carry values, for the group."""
        comm, found = self._comm, []
        for op, said in zip(self.ops, self._said, strict=True):
            sending = isinstance(op, Send)
            peer = op.dst if sending else op.src
            if comm.checked:
                header = packed_header(said) if sending else torch.empty(HEADER, dtype=torch.uint8)
                self._headers.append((comm.post_header(header, op), op, header, said))
            if op.x.numel() == 0:  # both sides know, and leave it out
                continue
            x = op.x.detach()
            staged = settled(x)
            if staged is not x and not sending:
                self._stage.append((x, staged))
            values = staged if staged.dtype in KNOWN else staged.reshape(-1).view(torch.uint8)
            verb = dist.isend if sending else dist.irecv
            found.append(dist.P2POp(verb, values, group=comm.group, group_peer=comm.ranks[peer]))
        return found

    def run(self, works: list[dist.Work]) -> None:
        self._running = works


def start_together(works: list[GroupedWork]) -> None:
    """All values that these have to pass, in one group."""
    batch = [op for work in works for op in work.begin()]
    group = dist.batch_isend_irecv(batch) if batch else []
    for work in works:
        work.run(group)


def _nbytes(said: tuple) -> int:
    shape, dtype, *_ = said
    return torch.Size(shape).numel() * getattr(torch, dtype).itemsize


def lost(error: Mismatch) -> CommError:
    """What to say to whoever goes on with a communicator whose two sides differ in bytes."""
    return CommError(
        "this Comm's communicator was given up after a mismatch, which NCCL does not survive: end the "
        f"run, and start it again.\n{error}"
    )


# ------------------------------------------------------------
# A group as a Comm: what is posted, split and asked of it, over gloo and over NCCL.


class TorchComm(Comm):
    """`group`: any process group (default: the world's).

    checked: send headers; None: if the group can carry CPU tensors.  timeout: seconds a wait may take.
    All ranks of the group make it, and several in the same order. Over gloo it raises PeerLost when the other side is
    dead, and RankMissing when it does not come in time. Over NCCL the host does not wait for values: nobody is told of
    a death but by torchrun, which ends the other ranks, or by NCCL's watchdog, which ends the process after `timeout`.
    """

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
        self.group = dist.group.WORLD if group is None else group
        backends = dist.get_backend_config(self.group)
        self.nccl, cpu = "nccl" in backends, "cpu:" in backends
        if checked and not cpu:
            raise ValueError(
                f"a checked TorchComm sends its headers over gloo, and this group has {backends}"
            )
        self.checked = cpu if checked is None else checked
        self.timeout = timeout
        self.trace = trace
        self.unwaited: dict[Work, None] = {}  # of this Comm and all made from it, for `flush`
        # likewise: those with operations that have not started
        self.posting: dict[TorchComm, None] = {}
        self.tracing, self.progress = threading.Lock(), progress()
        size, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        self.counts = _get_process_group_store(self.group)
        self.number = self.counts.add(f"minidist/comms/{rank}", 1)
        everyone, channel = list(range(size)), "main" if self.number == 1 else f"main {self.number}"
        self._devices()
        self._host = None
        if self.nccl:
            self._host = self._over_gloo(self.group, everyone, rank, channel) if cpu else None
            if self.number > 1:
                self.group = named_group(
                    self.group, everyone, channel, timeout, _of_gpus(self.group)
                )
            warm(self.group, self.device)
        self._open(everyone, rank, channel)

    def _devices(self) -> None:
        """Where values are, and who moves them. Another backend than NCCL that works on streams, such as the one of the
        tests, brings what it has in place of `torch.cuda` along, as `group.gpu`."""
        self.gpu = getattr(self.group, "gpu", torch.cuda) if self.nccl else None
        kind = getattr(self.group, "device_type", "cuda")
        self.device = (
            torch.device(kind, self.gpu.current_device()) if self.nccl else torch.device("cpu")
        )
        self.algorithm = "native" if self.nccl else "ring"
        self.any_source = not self.nccl

    def _open(self, ranks: list[int], rank: int, channel: str) -> TorchComm:
        """`ranks`: this Comm's ranks in `group`."""
        self.ranks = ranks
        self.rank = rank
        self.size = len(ranks)
        self.channel = channel
        self.members = tuple(dist.get_global_rank(self.group, r) for r in ranks)
        self.tag = crc32(channel.encode()) % 2**30
        self.sources: dict[int, Source] = {}  # by rank, or ANY
        self.behind: deque = deque()  # receives that were posted behind a wildcard
        self.wild = False  # whether a wildcard receive has not been met
        self.posted: list[GroupedWork] = []  # over NCCL: not started yet
        self.broken: CommError | None = None  # over NCCL: why it is of no use any more
        self.native, self._lanes = Native(self), {}
        return self

    def _another(self) -> TorchComm:
        """Another Comm with what all share that are made from one another, not opened yet."""
        other = object.__new__(TorchComm)
        for attribute in (
            "group",
            "nccl",
            "checked",
            "timeout",
            "trace",
            "device",
            "algorithm",
            "unwaited",
            "posting",
            "tracing",
            "progress",
            "counts",
            "number",
            "gpu",
            "any_source",
        ):
            setattr(other, attribute, getattr(self, attribute))
        other._host = None
        return other

    def _beside(self, ranks: list[int], rank: int, name: str) -> TorchComm:
        """A Comm of some of these ranks on a channel of its own. `ranks`: in `group`."""
        other, channel = self._another(), f"{self.channel}/{name}"
        if self.nccl:
            if self._host is not None:
                other._host = self._host._beside([self._host.ranks[r] for r in ranks], rank, name)
            other.group = named_group(
                self.group, ranks, channel, self.timeout, _of_gpus(self.group)
            )
            warm(other.group, self.device)
            ranks = list(range(len(ranks)))
        return other._open(ranks, rank, channel)

    def _over_gloo(
        self, group: dist.ProcessGroup, ranks: list[int], rank: int, channel: str
    ) -> TorchComm:
        """The Comm of these ranks of a group for CPU tensors."""
        other = self._another()
        other.group = group
        other.nccl = False
        other.gpu = None
        other.any_source = True
        other.device, other.algorithm = torch.device("cpu"), "ring"
        return other._open(ranks, rank, f"{channel}/host")

    def on_host(self) -> TorchComm:
        if not self.nccl:
            return self
        if self._host is None:  # a group for GPUs alone
            group = named_group(
                self.group, self.ranks, f"{self.channel}/host", self.timeout, "gloo"
            )
            self._host = self._over_gloo(group, list(range(self.size)), self.rank, self.channel)
        return self._host

    @property
    def patience(self) -> timedelta:
        """How long a wait may take."""
        return timedelta(seconds=self.timeout)

    def local(self, rank: int) -> int:
        """The rank here of a rank of `group`."""
        return self.ranks.index(rank)

    def _post(self, ops: Sequence[Send | Recv], waited: bool = False) -> Work:
        if self.nccl and any(isinstance(op, Recv) and op.src == ANY for op in ops):
            raise ValueError("NCCL cannot receive from any rank: name the source")
        if not self.nccl:
            return TorchWork(self, ops, waited)
        self.check_usable()
        work = GroupedWork(self, ops)
        self.posted.append(work)
        self.posting[self] = None
        if self.one_way:
            self.start()
        return work

    def start(self) -> None:
        """Over NCCL: start all that has been posted here, in one group."""
        if self.posted:
            works, self.posted = self.posted, []
            self.posting.pop(self, None)
            start_together(works)

    def start_all(self) -> None:
        """Over NCCL: likewise, and on all Comms made from one another; else nobody starts what others wait for."""
        for comm in list(self.posting):
            comm.start()

    def post_header(self, header: torch.Tensor, op: Send | Recv) -> dist.Work:
        """Over NCCL: send the header of a message, or have room for it, over gloo."""
        host = self._host
        if isinstance(op, Send):
            return dist.isend(
                header, group=host.group, group_dst=host.ranks[op.dst], tag=2 * self.tag
            )
        return dist.irecv(header, group=host.group, group_src=host.ranks[op.src], tag=2 * self.tag)

    def lose(self, error: Mismatch) -> None:
        """Give the communicator up: a transfer of it can never end."""
        self.broken = lost(error)
        with contextlib.suppress(Exception):
            self.group.abort()

    def check_usable(self) -> None:
        """CommError after a mismatch that the communicator did not survive."""
        if self.broken is not None:
            raise self.broken

    def record(self, op: Send, start: float | None = None) -> None:
        """Note a message in the trace. start: None: when is not known, as the device does it."""
        now = time.monotonic()
        src = self.members[self.rank]
        dst = self.members[op.dst]
        nbytes = op.x.numel() * op.x.element_size()
        with self.tracing:  # lanes record, too
            self.trace.add(
                src, dst, nbytes, start or now, now, now, op.label, lane_of(self.channel)
            )

    def _agree(self) -> None:
        if self.checked and not self.nccl:
            agree(self)

    def _abandon(self, call: tuple) -> None:
        for work in list(self.unwaited):
            if (
                isinstance(work, TorchWork | GroupedWork)
                and work.call == call
                and work._comm is self
            ):
                work.abandon()

    def made_elsewhere(self, peer: int) -> str:
        """For a timeout: that the other side has made fewer Comms of this group than this rank, if it has."""
        key = f"minidist/comms/{self.ranks[peer]}"
        made = (
            int(self.counts.get(key)) if peer != ANY and self.counts.check([key]) else self.number
        )
        if made >= self.number:
            return ""
        return (
            f"; this is Comm number {self.number} of its group, and that rank has made {made}: "
            "all ranks make them, in the same order"
        )

    def _subgroup(self, ranks: list[int], name: str) -> Comm:
        return self._beside([self.ranks[r] for r in ranks], ranks.index(self.rank), name)

    def _exchange(self, row: list[int]) -> list[list[int]]:
        self.start_all()
        return self.on_host()._exchange(row) if self.nccl else super()._exchange(row)

    def stream(self, fn: Callable, *args, lane: int = 0) -> Work:
        if lane not in self._lanes:
            self.start_all()
            comm = self._beside(self.ranks, self.rank, f"lane {lane}")
            if self.nccl:
                self._lanes[lane] = StreamLane(comm, self.gpu, self.unwaited)
            else:
                self._lanes[lane] = ThreadLane(comm, f"lane {lane}", self.unwaited)
        return self._lanes[lane].put(fn, args)

    def link(self, dst: int, src: int | None = None) -> Link:
        ends(self, dst, src)
        return Link(10e-6, 1 / 100e9) if self.nccl else Link(50e-6, 1 / 2e9)

    def now(self) -> float:
        return time.monotonic()

    def flush(self) -> None:
        """Wait for all that was posted; raises what went wrong in it."""
        self.start_all()
        while self.unwaited:
            next(iter(self.unwaited)).wait()


def _of_gpus(group: dist.ProcessGroup) -> str:
    """The backend of a group that carries GPUs' tensors, such as "nccl"."""
    return BackendConfig(dist.Backend(dist.get_backend_config(group))).get_device_backend_map()[
        "cuda"
    ]


def from_env(
    backend: str | None = None,
    seed: int = 0,
    checked: bool | None = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> Comm:
    """The Comm of a process that torchrun started: NCCL where there are GPUs, else gloo.

    backend: "nccl" or "gloo" to insist, or one that was registered with PyTorch.  seed: of each rank's random numbers,
    as in a World.  timeout: seconds that a wait may take, of all its groups.
    An exception that nobody catches ends the process at once: its groups would wait for peers that wait for it, and
    torchrun, which ends the others, would not learn of it.
    Raises RuntimeError outside torchrun, where a restart would hang, and where other hosts would find no interface of
    this one; ValueError when there are more local ranks than GPUs.
    """
    check_timeout(timeout)
    seed = check_seed(seed)
    if backend not in (None, "gloo", "nccl") and str(backend).upper() not in dist.Backend._plugins:
        raise ValueError(f'a backend is "gloo" or "nccl", not {backend!r}')
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise RuntimeError(
            "RANK and WORLD_SIZE are not set: start with `torchrun --nproc-per-node 4 …`, "
            "or use World(4).run(program) or launch(program, 4)"
        )
    _refuse_stale_store()
    local, ranks_here = (
        int(os.environ.get("LOCAL_RANK", 0)),
        int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
    )
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
    seed_all(seed_of(seed, dist.get_rank()))
    comm = TorchComm(checked=checked, timeout=timeout)
    if comm.nccl:
        atexit.register(_start_the_rest, [comm])
    return comm


def _start_the_rest(comms: list[TorchComm]) -> None:
    """Before the groups are left: start what was posted, and that nobody has waited for. Then let go of the Comm."""
    comms.pop().start_all()


def _ends_the_process(told: Callable) -> Callable:
    """A `sys.excepthook` that says what `told` says, and leaves without a word to the process groups."""

    def hook(kind, error, trace) -> None:
        told(kind, error, trace)
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
    """Leave the default group. Collected first: a gloo rank can abort when work dies after its group."""
    if dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()
