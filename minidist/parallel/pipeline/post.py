"""All edges of one stage: which mailbox a message goes through, and what is known of it before it comes.

A step begins with its announcement, which travels from the first stage to the last: (number, M, samples) in 24 bytes.
`number` stands for the kind of batch (the shapes of its micro-batches); a stage that has seen it knows the layout of
every message to come. See `layout`, `mail` and `plan`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...comm.base import Comm
from ..schedules import Item, Shape
from .layout import Layout, layout
from .mail import Inbox, Local, Outbox, host
from .plan import Edge, Plan, edges, label


class Post:
    """The mailboxes of this rank, on channels of their own: 2(S·v − 1) groups of two ranks, made without a message."""

    def __init__(self, comm: Comm, shape: Shape, ahead: int):
        self.comm = comm
        self.stage = comm.rank
        self.boxes = {}
        self._kinds: dict[tuple, int] = {}  # on the first stage: kinds of batches, by number
        # by number, after its first step
        self._seen: dict[int, dict[Edge, dict[int, list[Layout]]]] = {}
        self._edges = {(e.what, e.part): e for e in edges(shape)}
        for edge in self._edges.values():
            color = [0 if rank in edge[2:] else None for rank in range(comm.size)]
            both = comm.split(color)
            if both is not None:
                both.one_way = True
                self.boxes[edge] = (
                    Local()
                    if both.size == 1
                    else Outbox(both, edge.what)
                    if edge.src == comm.rank
                    else Inbox(both, edge.what, ahead)
                )

    def forget(self) -> None:
        """Layouts are told again, at the next batch of each kind."""
        self._kinds, self._seen = {}, {}

    def announce(self, parts: Sequence[Sequence[Tensor]] | None, M: int) -> tuple[int, int]:
        """(number, samples) of the step that begins, from the first stage, which alone gives `parts`.

        Raises ValueError where this rank was told another M.
        """
        if parts is not None:
            kind = tuple(tuple(layout(x) for x in part) for part in parts)
            number, samples = (
                self._kinds.setdefault(kind, len(self._kinds)),
                sum(part[0].shape[0] for part in parts),
            )
        else:
            said = torch.zeros(3, dtype=torch.int64, device=host(self.comm.on_host()))
            number, first, samples = self._next("a", self.stage - 1).hear(said, "a step")
            if first != M:
                raise ValueError(
                    f"stage {self.stage} was given M = {M}, but stage {self.stage - 1} M = {first}"
                )
        if self.stage < self.comm.size - 1:
            said = torch.tensor([number, M, samples], device=host(self.comm.on_host()))
            self._next("a", self.stage).say(said, "a step")
        return number, samples

    def begin(self, plan: Plan, shape: Shape, number: int) -> None:
        """Post the first receives of a step, and the boxes' other preparations."""
        self.shape, self.number = shape, number
        seen = self._seen.get(number)
        for edge, box in self.boxes.items():
            known = None if seen is None else seen[edge]
            if isinstance(box, Inbox):
                labels = {m: label(Item(edge.what, m, edge.part), shape) for m in plan.order[edge]}
                box.begin(plan.order[edge], known or {}, labels)
            else:
                box.begin(known)

    def end(self) -> None:
        """Wait for what nobody has answered, and keep the layouts."""
        for box in self.boxes.values():
            box.end()
        self._seen[self.number] = {edge: box.known for edge, box in self.boxes.items()}

    def take(self, item: Item) -> list[Tensor]:
        """What another action has made: of a neighbour, or of this stage if it holds both parts."""
        return self._next(item.what, item.part).take(item.micro)

    def put(self, item: Item, tensors: Sequence[Tensor], wanted: Sequence[bool]) -> None:
        """Send an item on its way. wanted: which of the tensors want a gradient back."""
        self._next(item.what, item.part).put(item.micro, tensors, wanted, label(item, self.shape))
        if item.what == "a":  # what will come back looks alike
            back = [layout(x, False) for x, w in zip(tensors, wanted, strict=True) if w]
            self._next("g", item.part + 1).expect(item.micro, back)

    def free(self, edge: Edge, micro: int) -> None:
        self.boxes[edge].free(micro)

    def _next(self, what: str, part: int):
        return self.boxes[self._edges[what, part]]
