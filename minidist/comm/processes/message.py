"""One side of a transfer between processes: where its bytes lie, and how many have moved."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator

import torch

from ..base import ANY, Mismatch, Recv, Send, Work, describe
from ..header import Side, mismatch
from ..program import caller, located
from .rings import packed


def says(op: Send | Recv, checked: bool, call: tuple | None = None) -> tuple:
    """What the header of a message says of this side, in types that marshal knows. call: see `Comm.call`."""
    if op.x.is_meta:
        raise ValueError(
            f"a meta tensor, {describe(op.x)}, has no values to pass between processes: use a World"
        )
    found = caller() if checked else None
    where = (_at_most(200, found[0].co_filename[::-1])[::-1], found[1]) if found else ("", 0)
    return (
        tuple(op.x.shape),
        str(op.x.dtype).removeprefix("torch."),
        op.label and _at_most(120, op.label),
        call,
        *where,
    )


def _at_most(nbytes: int, text: str) -> str:
    """The beginning of `text`, cut to fit in a header."""
    return text.encode()[:nbytes].decode(errors="ignore")


def side(rank: int, said: tuple) -> Side:
    """The same for people: `rank` is that side's rank."""
    shape, dtype, label, call, filename, line = said
    return Side(
        rank, shape, getattr(torch, dtype), label, call, located(filename, line) if filename else ""
    )


def plain(x: torch.Tensor) -> bool:
    """Whether the bytes from `x.data_ptr()` on are the values: no strides, no postponed conjugate or minus."""
    return x.is_contiguous() and not x.is_conj() and not x.is_neg()


def settled(x: torch.Tensor) -> torch.Tensor:
    """`x` itself if it is plain, else a plain copy."""
    return x if plain(x) else x.resolve_conj().resolve_neg().contiguous()


class Message:
    """An operation of this rank; `peer` is the other side's rank in the whole run (or ANY)."""

    sending: bool

    def __init__(self, work: ShmWork, op: Send | Recv, comm, checked: bool):
        self.work = work
        self.op = op
        self.comm = comm
        self.sending = isinstance(op, Send)
        peer = op.dst if self.sending else op.src
        self.peer = peer if peer == ANY else comm.ranks[peer]
        self.said = says(op, checked, comm.call)
        self.moved = 0
        self.begun = False
        self.over = False
        x = op.x.detach()
        if x.device.type == "cpu" and plain(x):
            self.flat = x
        else:  # staged: values of a send, room for a receive
            self.flat = (
                settled(x.to("cpu")) if self.sending else torch.empty(x.shape, dtype=x.dtype)
            )
        self.nbytes, self.pointer = (
            self.flat.numel() * self.flat.element_size(),
            self.flat.data_ptr(),
        )
        self.posted = time.monotonic()
        self.header = (
            packed((comm.channel, self.nbytes, self.posted, self.said)) if self.sending else None
        )

    @property
    def complete(self) -> bool:
        return self.begun and self.moved >= self.nbytes

    def finish(self, error: BaseException | None = None) -> None:
        if (
            error is None
            and not self.sending
            and not self.over
            and self.pointer != self.op.x.data_ptr()
        ):
            self.op.x.detach().copy_(self.flat)
        self.over = True
        self.work.error = self.work.error or error
        self.work.parts -= 1

    def divert(self) -> None:
        """Nobody wants what is coming: let it come to other memory."""
        self.flat = torch.empty_like(self.flat)
        self.pointer = self.flat.data_ptr()

    def mismatch(self, header: tuple) -> Mismatch | None:
        """What is wrong with a message that has come for this receive."""
        sent, expected = header[3], self.said
        if sent[:4] == expected[:4]:
            return None
        return Mismatch(
            mismatch(side(self.peer, sent), side(self.comm.ranks[self.comm.rank], expected))
        )

    def __str__(self) -> str:
        verb, to = ("send", "to") if self.sending else ("receive", "from")
        rank = "any rank" if self.peer == ANY else f"rank {self.peer}"
        label = f" [{self.op.label}]" if self.op.label else ""
        return f"{verb} of {describe(self.op.x)} {to} {rank}{label}"


class Aside:
    """A message that came before its receive was posted, or that nobody can take: bytes of our own."""

    def __init__(self, header: tuple):
        self.header = header
        self.nbytes = header[1]
        self.moved = 0
        self.begun = False
        self.flat = torch.empty(self.nbytes, dtype=torch.uint8)
        self.pointer = self.flat.data_ptr()

    complete = Message.complete

    def give(self, receive: Message) -> None:
        if receive.nbytes:
            ctypes.memmove(receive.pointer, self.pointer, self.nbytes)


class ShmWork(Work):
    """Finished when all its messages are."""

    __slots__ = ("_endpoint", "error", "messages", "parts", "source")

    def __init__(self, endpoint, parts: int):
        self._endpoint = endpoint
        self.parts = parts
        self.error = None
        self.source = None
        self.messages: list[Message] = []

    def done(self) -> bool:
        self._endpoint.progress()
        if self.parts:
            self._endpoint.check_alive()
        return self.parts == 0

    def waits(self) -> bool:
        """Whether something has to come yet: all, but no sends after a mismatch."""
        if isinstance(self.error, Mismatch):
            return any(not message.sending and not message.over for message in self.messages)
        return self.parts > 0

    def of(self, comm, call: tuple) -> Iterator[bool]:
        """Whether its messages belong to a collective of `comm`."""
        return (message.comm is comm and message.said[3] == call for message in self.messages)

    def wait(self) -> None:
        if self.waits():
            self._endpoint.wait(self)
        self._endpoint.open.pop(self, None)
        self.messages = []  # they hold this work, and their tensors
        if self.error is not None:
            raise self.error

    def __str__(self) -> str:
        return " and ".join(str(m) for m in self.messages if not m.over)
