"""Which messages a stage sends and receives, read from the lists of all stages.

Nobody writes down a message: an activation leaves a part of the model with its F and goes to the next part's F, a
gradient leaves with B or I and goes to the part before (`schedules`). Two things are found out here, once for
each M:

    order   in which an edge's messages are sent. The receiver posts its receives so, in whatever order it uses them.
    over    which of a stage's sends are over at an action: the first that waits for a message which the receiver
            sent after it had used this one. Waiting for them there costs nothing, and their memory is free.

So a send is never waited for before it must be over, and no schedule that could end can hang.
Invariant: every message is in one order, and at most once in `over`; those that nobody answers are over at the end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from ..schedules import Action, Item, Shape


class Edge(NamedTuple):
    """A way for messages: what ("a" activation, "g" gradient) leaves `part` of the model, from stage src to dst."""

    what: str
    part: int
    src: int
    dst: int


class Plan(NamedTuple):
    """What a stage does in a step, and its messages.

    actions: its list.  order: for each edge that comes in, the micro-batches in the order of sending.
    over: for each action, the sends that are over once its message has come.
    """

    actions: list[Action]
    order: dict[Edge, list[int]]
    over: list[list[tuple[Edge, int]]]


def edges(shape: Shape) -> list[Edge]:
    """All edges of a pipeline, also those within one stage, in an order that is the same on every rank."""
    found = []
    for part in range(shape.S * shape.v - 1):
        low, high = shape.stage(part), shape.stage(part + 1)
        found += [Edge("a", part, low, high), Edge("g", part + 1, high, low)]
    return found


def plan(lists: Sequence[Sequence[Action]], shape: Shape, stage: int) -> Plan:
    """The plan of `stage`."""
    known = {(e.what, e.part): e for e in edges(shape)}
    out, into = _messages(lists[stage], shape, stage, known)
    order: dict[Edge, list[int]] = {e: [] for e in known.values() if e.dst == stage != e.src}
    over: list[list[tuple[Edge, int]]] = [[] for _ in lists[stage]]
    for peer in {e.src for e in order} | {e.dst for e in known.values() if e.src == stage != e.dst}:
        sent, used = _messages(lists[peer], shape, peer, known)
        for (edge, micro), _ in sorted(sent.items(), key=lambda item: item[1]):
            if edge in order:
                order[edge].append(micro)
        answers = sorted((position, sent[m]) for m, position in into.items() if m[0].src == peer)
        latest = list(accumulate((said for _, said in answers), max))
        for message, position in used.items():
            first = bisect_left(latest, position) if message in out else len(latest)
            if first < len(latest):
                over[answers[first][0]].append(message)
    return Plan(list(lists[stage]), order, over)


def _messages(
    actions: Sequence[Action], shape: Shape, stage: int, known: dict
) -> tuple[dict, dict]:
    """{(edge, micro): position in the list} of the messages that a stage sends, and of those that it uses."""
    out, into = {}, {}
    for position, action in enumerate(actions):
        item = shape.gives(stage, action)
        edge = known.get((item.what, item.part))
        if edge is not None and edge.src != edge.dst:
            out[edge, item.micro] = position
        for need in shape.far(stage, action):
            into[known[need.what, need.part], need.micro] = position
    return out, into


@lru_cache(maxsize=4096)
def label(item: Item, shape: Shape) -> str:
    """What a message says of itself: the action that made it, "F3", or "F3.1" of a second chunk."""
    stage = shape.stage(item.part)
    chunk = next(c for c in range(shape.v) if shape.part(stage, c) == item.part)
    return str(Action("F" if item.what == "a" else "B", item.micro, chunk))
