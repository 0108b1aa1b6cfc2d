"""One edge of a pipeline: messages of several tensors from one stage to the next, or to the one before.

Every edge and direction has a channel of its own. There are no tags: two stages that share several edges, as
interleaved chunks do, match messages in posting order, and each edge has an order of its own. Over NCCL a channel is a
stream, too, on which no message of another edge stands before one, and whose messages go one way, so that each starts
when it is posted; what a message looks like is told between the hosts. Sends are started and not waited for until they
must be over: a stage that waits for each is where pipelines deadlock. Receives are posted in the order of sending;
`ahead` of them before they are needed, so that a message comes in while its receiver computes.

    Outbox  put(micro, tensors)    free(micro)    on the sending stage
    Inbox   take(micro)                           on the receiving stage
    Local   both                                  where two parts that follow each other are one stage's

Cost of a message of N bytes: α + Nβ, hidden behind the computation where that takes longer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...comm.base import Comm, Recv, Send, Work
from .layout import Layout, layout, layouts, numbers, words

Known = dict[int, list[Layout]]


def host(comm: Comm) -> torch.device:
    """Where small whole numbers are kept that are read: a meta tensor could not be."""
    return torch.device("cpu") if comm.device.type == "meta" else comm.device


class Outbox:
    """The sending end; `comm` is of the two stages of the edge, `what` is "a" or "g"."""

    def __init__(self, comm: Comm, what: str):
        self.comm = comm
        self.peer = 1 - comm.rank
        self.what = what
        self.words = comm.on_host()
        self.known: Known = {}
        self.pending: dict[int, list[Work]] = {}

    def begin(self, known: Known | None) -> None:
        """known: the layouts of this step's messages by micro-batch, None if the receiver must be told."""
        self.new, self.known = known is None, known or {}

    def put(
        self, micro: int, tensors: Sequence[Tensor], wanted: Sequence[bool], label: str
    ) -> None:
        """Start sending. A new layout goes first, unless the receiver can know it: that of a gradient."""
        here = [layout(x, w) for x, w in zip(tensors, wanted, strict=True)]
        if here != self.known.setdefault(micro, here):
            raise ValueError(
                f"{label} gave {words(here)}, but {words(self.known[micro])} when a batch of these shapes"
                " came first: call forget() on every rank if the model has changed"
            )
        works = self.pending[micro] = []
        if self.new and self.what == "a":
            row = numbers(here)
            for part in ([len(row)], row):
                told = torch.tensor(part, device=host(self.words))
                works.append(self.words.isend(told, self.peer, f"layout {label}"))
        if tensors:
            works.append(self.comm.batch([Send(x.detach(), self.peer, label) for x in tensors]))

    def say(self, row: Tensor, label: str) -> None:
        """Send whole numbers, before a step's messages."""
        self.pending[-1] = [self.words.isend(row, self.peer, label)]

    def free(self, micro: int) -> None:
        """Wait for a send, which lets go of its tensors."""
        for work in self.pending.pop(micro):
            work.wait()

    def end(self) -> None:
        for micro in list(self.pending):
            self.free(micro)


class Inbox:
    """The receiving end; `ahead`: how many receives are posted before they are needed."""

    def __init__(self, comm: Comm, what: str, ahead: int):
        self.comm = comm
        self.peer = 1 - comm.rank
        self.what = what
        self.ahead = ahead
        self.words = comm.on_host()
        self.known: Known = {}

    def begin(self, order: Sequence[int], known: Known, labels: dict[int, str]) -> None:
        """order: micro-batches as they are sent; known: their layouts, if not new; labels: of the messages."""
        self.order = list(order)
        self.known = known
        self.labels = labels
        self.next, self.posted = 0, {}
        self._look_ahead()

    def hear(self, row: Tensor, label: str) -> list[int]:
        """Receive whole numbers."""
        return self.words.recv(row, self.peer, label).tolist()

    def expect(self, micro: int, looks: list[Layout]) -> None:
        """This is what a message will look like."""
        if looks != self.known.setdefault(micro, looks):
            raise ValueError(
                f"{self.labels[micro]} will be {words(looks)}, but was {words(self.known[micro])} when a"
                " batch of these shapes came first: call forget() on every rank"
            )
        self._look_ahead()

    def take(self, micro: int) -> list[Tensor]:
        """Wait for a message; the next ones are posted then."""
        while micro not in self.posted:
            self._post()
        tensors, work = self.posted.pop(micro)
        if work is not None:
            work.wait()
        self._look_ahead()
        return tensors

    def end(self) -> None:
        pass

    def _look_ahead(self) -> None:
        while (
            self.next < len(self.order)
            and len(self.posted) < self.ahead
            and self.order[self.next] in self.known
        ):
            self._post()

    def _post(self) -> None:
        """Post the receive that is next on this edge."""
        micro = self.order[self.next]
        self.next += 1
        if micro not in self.known:
            device, name = host(self.words), f"layout {self.labels[micro]}"
            (length,) = self.hear(torch.zeros(1, dtype=torch.int64, device=device), name)
            self.known[micro] = layouts(
                self.hear(torch.zeros(length, dtype=torch.int64, device=device), name)
            )
        tensors = [one.empty(self.comm.device) for one in self.known[micro]]
        ops = [Recv(x.detach(), self.peer, self.labels[micro]) for x in tensors]
        self.posted[micro] = tensors, self.comm.batch(ops) if ops else None


class Local:
    """Both ends of an edge within one stage."""

    def __init__(self):
        self.known: Known = {}

    def begin(self, known: Known | None) -> None:
        self.held: dict[int, list[Tensor]] = {}

    def put(
        self, micro: int, tensors: Sequence[Tensor], wanted: Sequence[bool], label: str
    ) -> None:
        self.held[micro] = [
            x.detach().requires_grad_(w) for x, w in zip(tensors, wanted, strict=True)
        ]

    def expect(self, micro: int, looks: list[Layout]) -> None:
        pass

    def take(self, micro: int) -> list[Tensor]:
        return self.held.pop(micro)

    def end(self) -> None:
        self.held = {}
