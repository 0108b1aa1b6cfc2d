"""One batch of sends and receives over gloo, with their headers."""

from __future__ import annotations

import contextlib
import marshal
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from ..base import ANY, Mismatch, PeerLost, RankMissing, Send, Work, describe
from ..header import mismatch, order
from ..processes.message import says, settled, side
from ..processes.rings import HEADER, packed
from .progress import Receive

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

    # What the readers of headers do for a receive (see progress.py).

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
