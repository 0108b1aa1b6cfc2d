"""One batch of sends and receives on a torch.distributed group, with their headers."""

from __future__ import annotations

import marshal
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from .base import ANY, PeerLost, RankMissing, Work, describe, mismatch
from .message import says, side
from .rings import HEADER

_LOST = ("closed by peer", "reset by peer", "Broken pipe", "closed connection", "Connection refused")


class TorchWork(Work):
    """Headers have even tags, values odd ones, so a receive's header can be read before its values."""

    __slots__ = ("_comm", "_posted", "_receives", "_running", "_stage", "_start", "ops", "source")

    def __init__(self, comm, ops):
        self._comm, self.ops, self.source, self._posted = comm, ops, None, True
        self._start = time.monotonic()
        self._running: list[tuple] = []  # (work of torch, op, what must stay alive)
        self._stage: list[tuple] = []  # (target, staged): received values on their way to a strided tensor
        self._receives: list[list] = []  # [op, said, header tensor, its work]
        comm.unwaited[self] = None
        if comm.nccl:
            self._post_grouped()
        else:
            self._post_each()

    def _peer(self, peer: int) -> int | None:
        return None if peer == ANY else self._comm.ranks[peer]

    def _send(self, x: torch.Tensor, op, tag: int) -> None:
        work = dist.isend(x, group=self._comm.group, group_dst=self._peer(op.dst), tag=2 * self._comm.tag + tag)
        self._running.append((work, op, x))

    def _receive(self, x: torch.Tensor, src: int | None, tag: int):
        return dist.irecv(x, group=self._comm.group, group_src=src, tag=2 * self._comm.tag + tag)

    def _post_each(self) -> None:
        for op in self.ops:
            said = says(op, self._comm.checked)
            if hasattr(op, "dst"):
                if self._comm.checked:
                    self._send(_packed(said), op, 0)
                if op.x.numel():
                    self._send(op.x.detach().contiguous(), op, 1)
            elif self._comm.checked:
                header = torch.empty(HEADER, dtype=torch.uint8)
                self._receives.append([op, said, header, self._receive(header, self._peer(op.src), 0)])
            else:
                self._take(op, self._peer(op.src))
        if self._receives:
            self._posted = False
            self._comm.unread.append(self)

    def _post_grouped(self) -> None:
        """NCCL: all headers first, then all values in one batch."""
        comm = self._comm
        if comm.checked:
            for op in self.ops:
                if hasattr(op, "dst"):
                    self._send(_packed(says(op, True)), op, 0)
            for op in self.ops:
                if hasattr(op, "src"):
                    header = torch.empty(HEADER, dtype=torch.uint8)
                    self._finish(self._receive(header, self._peer(op.src), 0), op)
                    self._compare(op, says(op, True), header)
        batch = []
        for op in self.ops:
            verb, peer = (dist.isend, op.dst) if hasattr(op, "dst") else (dist.irecv, op.src)
            x = op.x.detach()
            staged = x if x.is_contiguous() else x.contiguous()
            if hasattr(op, "src") and staged is not x:
                self._stage.append((x, staged))
            batch.append(dist.P2POp(verb, staged, group=comm.group, group_peer=self._peer(peer)))
        self._running += [(work, self.ops[0], batch) for work in (dist.batch_isend_irecv(batch) if batch else [])]

    def _take(self, op, src: int | None) -> None:
        """Post the receive of an operation's values."""
        x = op.x.detach()
        staged = x if x.is_contiguous() else torch.empty_like(x, memory_format=torch.contiguous_format)
        if x.numel():
            self._running.append((self._receive(staged, src, 1), op, staged))
        if staged is not x:
            self._stage.append((x, staged))

    def _read_headers(self) -> None:
        """Wait for the headers, compare, and post the receives of the values."""
        for op, said, header, work in self._receives:
            self._finish(work, op)
            src = work._source_rank() if op.src == ANY else self._peer(op.src)
            self.source = self._comm.local(src)
            self._compare(op, said, header)
            self._take(op, src)
        self._posted = True

    def _compare(self, op, said: tuple, header: torch.Tensor) -> None:
        sent = marshal.loads(header.numpy().tobytes())
        if sent[:3] != said[:3]:
            src = self.source if op.src == ANY else op.src
            raise ValueError(mismatch(side(src, sent), side(self._comm.rank, said)))

    def _finish(self, work, op) -> None:
        comm = self._comm
        try:
            work.wait(timedelta(seconds=comm.timeout))
        except RuntimeError as error:
            sending = hasattr(op, "dst")
            peer = op.dst if sending else op.src
            if any(words in str(error) for words in _LOST):
                raise PeerLost(peer, str(error).splitlines()[0]) from None
            if "imed out" in str(error) or "imeout" in str(error):
                what = f"send of {describe(op.x)} to" if sending else f"receive of {describe(op.x)} from"
                raise RankMissing(f"rank {comm.rank} waited {comm.timeout:g} s for {what} rank {peer}") from None
            raise

    def done(self) -> bool:
        unread = self._comm.unread
        while not self._posted and all(receive[3].is_completed() for receive in unread[0]._receives):
            unread.popleft()._read_headers()
        return self._posted and all(work.is_completed() for work, _, _ in self._running)

    def wait(self) -> None:
        self._comm.unwaited.pop(self, None)
        while not self._posted:  # in the order of posting, also when a later one is waited for first
            self._comm.unread.popleft()._read_headers()
        for work, op, _ in self._running:
            self._finish(work, op)
            if not hasattr(op, "dst") and op.src == ANY and not self._comm.checked:
                self.source = self._comm.local(work._source_rank())
        for x, staged in self._stage:
            x.copy_(staged)
        self._record()

    def _record(self) -> None:
        comm, ops, self.ops = self._comm, self.ops, ()
        self._running, self._stage = [], []
        for op in ops if comm.trace is not None else ():
            if hasattr(op, "dst"):
                now, lane = time.monotonic(), comm.channel.rpartition("/")[2]
                comm.trace.add(comm.ranks[comm.rank], comm.ranks[op.dst], op.x.numel() * op.x.element_size(), self._start,
                               now, now, op.label, lane if lane.startswith("lane") else "main")  # fmt: skip


def _packed(said: tuple) -> torch.Tensor:
    header = torch.zeros(HEADER, dtype=torch.uint8)
    data = marshal.dumps(said)
    header[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return header
