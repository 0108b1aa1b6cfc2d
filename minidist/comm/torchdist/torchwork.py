"""One batch of sends and receives on a torch.distributed group, with their headers."""

from __future__ import annotations

import contextlib
import marshal
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from ..base import ANY, Mismatch, PeerLost, RankMissing, Send, Work, describe
from ..header import mismatch
from ..processes.message import says, settled, side
from ..processes.rings import HEADER, packed
from ..trace import lane_of

_LOST = ("closed by peer", "reset by peer", "Broken pipe", "closed connection", "Connection refused")


class TorchWork(Work):
    """Headers have even tags, values odd ones, so a receive's header can be read before its values."""

    __slots__ = ("_comm", "_error", "_over", "_posted", "_receives", "_running", "_stage", "_start", "_thread", "ops",
                 "source")  # fmt: skip

    def __init__(self, comm, ops):
        self._comm, self.ops, self.source, self._posted = comm, ops, None, True
        self._start, self._error, self._over, self._thread = time.monotonic(), None, False, None
        self._running: list[tuple] = []  # (work of torch, op, what must stay alive)
        self._stage: list[tuple] = []  # (target, staged): received values on their way to a strided tensor
        self._receives: list[tuple] = []  # (op, said, header tensor, its work)
        said = [says(op, comm.checked) for op in ops]
        try:
            (self._post_grouped if comm.nccl else self._post_each)(said)
        except PeerLost as error:
            self._error = error
        comm.unwaited[self] = None

    def _peer(self, peer: int) -> int | None:
        return None if peer == ANY else self._comm.ranks[peer]

    def _send(self, x: torch.Tensor, op, tag: int) -> None:
        with self._naming(op):
            work = dist.isend(x, group=self._comm.group, group_dst=self._peer(op.dst), tag=2 * self._comm.tag + tag)
        self._running.append((work, op, x))

    def _receive(self, x: torch.Tensor, op, src: int | None, tag: int):
        with self._naming(op):
            return dist.irecv(x, group=self._comm.group, group_src=src, tag=2 * self._comm.tag + tag)

    def _post_each(self, said: list[tuple]) -> None:
        both = zip(self.ops, said, strict=True)
        # Receives first: gloo tells the sender that there is one, and behind our own values the note would wait.
        for op, mine in sorted(both, key=lambda one: isinstance(one[0], Send)):
            if isinstance(op, Send):
                if self._comm.checked:
                    self._send(_header(mine), op, 0)
                if op.x.numel():
                    self._send(settled(op.x.detach()), op, 1)
            elif self._comm.checked:
                header = torch.empty(HEADER, dtype=torch.uint8)
                self._receives.append((op, mine, header, self._receive(header, op, self._peer(op.src), 0)))
            else:
                self._take(op, self._peer(op.src))
        if self._receives:
            self._posted = False
            self._comm.unread.append(self)

    def _post_grouped(self, said: list[tuple]) -> None:
        """NCCL: all headers first, then all values in one batch."""
        comm = self._comm
        if comm.checked:
            for op, mine in zip(self.ops, said, strict=True):
                if isinstance(op, Send):
                    self._send(_header(mine), op, 0)
            for op, mine in zip(self.ops, said, strict=True):
                if not isinstance(op, Send):
                    header = torch.empty(HEADER, dtype=torch.uint8)
                    self._finish(self._receive(header, op, self._peer(op.src), 0), op)
                    if error := self._differs(op.src, mine, marshal.loads(header.numpy().tobytes())):
                        raise error
        batch = []
        for op in self.ops:
            verb, peer = (dist.isend, op.dst) if isinstance(op, Send) else (dist.irecv, op.src)
            x = op.x.detach()
            staged = settled(x)
            if staged is not x and not isinstance(op, Send):
                self._stage.append((x, staged))
            batch.append(dist.P2POp(verb, staged, group=comm.group, group_peer=self._peer(peer)))
        self._running += [(work, None, batch) for work in (dist.batch_isend_irecv(batch) if batch else [])]

    def _take(self, op, src: int | None) -> None:
        """Post the receive of an operation's values."""
        x = op.x.detach()
        staged = settled(x)
        if x.numel():
            self._running.append((self._receive(staged, op, src, 1), op, staged))
        if staged is not x:
            self._stage.append((x, staged))

    def _read_headers(self) -> None:
        """Wait for the headers, compare, and post the receives of the values."""
        try:
            for op, said, header, work in self._receives:
                self._finish(work, op)
                src = work._source_rank() if op.src == ANY else self._peer(op.src)
                self.source = self._comm.local(src)
                sent = marshal.loads(header.numpy().tobytes())
                error = self._differs(self.source, said, sent)
                if error is None:
                    self._take(op, src)
                    continue
                self._error = self._error or error
                values = torch.empty(sent[0], dtype=getattr(torch, sent[1]))  # they come all the same
                if values.numel():
                    self._comm.unwanted.append((values, self._receive(values, op, src, 1)))
        except Exception as error:
            self._error = self._error or error
        finally:
            self._posted = True

    def _differs(self, src: int, said: tuple, sent: tuple) -> Mismatch | None:
        if sent[:3] == said[:3]:
            return None
        ranks = self._comm.ranks
        return Mismatch(mismatch(side(ranks[src], sent), side(ranks[self._comm.rank], said)))

    def _finish(self, work, op) -> None:
        """Wait for a work of torch. NCCL's values (op None) are waited for by the GPU, not by us."""
        if op is None:
            work.wait()
            return
        with self._naming(op):
            work.wait(timedelta(seconds=self._comm.timeout))

    @contextlib.contextmanager
    def _naming(self, op):
        """What gloo says of an operation's failure, as our errors. Of a death it tells one wait, then every post."""
        comm = self._comm
        try:
            yield
        except RuntimeError as error:
            verb, to, peer = ("send", "to", op.dst) if isinstance(op, Send) else ("receive", "from", op.src)
            if any(words in str(error) for words in _LOST):
                raise PeerLost(peer, str(error).splitlines()[0]) from None
            if "imed out" in str(error) or "imeout" in str(error):
                whom = "any rank" if peer == ANY else f"rank {comm.ranks[peer]}"
                raise RankMissing(f"rank {comm.ranks[comm.rank]} waited {comm.timeout:g} s for "
                                  f"{verb} of {describe(op.x)} {to} {whom}") from None  # fmt: skip
            raise

    def done(self) -> bool:
        if self._comm.nccl:
            return all(work.is_completed() for work, _, _ in self._running)
        if self._thread is None and not self._over:  # gloo finishes nothing that no thread waits for
            self._thread = threading.Thread(target=self._settle, daemon=True)
            self._thread.start()
        if self._thread is not None:
            self._thread.join(1e-3)
        return self._over

    def wait(self) -> None:
        self._comm.unwaited.pop(self, None)
        if self._thread is not None:
            self._thread.join()
        self._settle()
        if self._error is not None:
            raise self._error

    def _settle(self) -> None:
        """Finish, once. What goes wrong is kept for `wait`."""
        if self._over:
            return
        try:
            with self._comm.reading:
                while not self._posted:  # in the order of posting, also when a later one is waited for first
                    self._comm.unread.popleft()._read_headers()
            for work, op, _ in self._running if self._error is None else ():
                self._finish(work, op)
                if not self._comm.checked and op is not None and not isinstance(op, Send):
                    self.source = self._comm.local(work._source_rank()) if op.src == ANY else op.src
            for x, staged in self._stage if self._error is None else ():
                x.copy_(staged)
        except BaseException as error:
            self._error = error
        self._record()
        self._over = True

    def _record(self) -> None:
        comm, ops, self.ops = self._comm, self.ops, ()
        self._running, self._stage = [], []
        lane, now = lane_of(comm.channel), time.monotonic()
        for op in ops if comm.trace is not None else ():
            if isinstance(op, Send):
                src, dst, nbytes = comm.ranks[comm.rank], comm.ranks[op.dst], op.x.numel() * op.x.element_size()
                with comm.tracing:  # lanes record, too
                    comm.trace.add(src, dst, nbytes, self._start, now, now, op.label, lane)


def _header(said: tuple) -> torch.Tensor:
    data = packed(said)
    header = torch.zeros(HEADER, dtype=torch.uint8)
    header[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return header
