"""Whether all stages come to the end of their lists: who waits for whom, with sends that are rendezvous.

A stage posts the receive that its next action needs, waits for it, computes, and posts the send of the result
without waiting. A message passes when its send and its receive are both first in their queues. Queues there are:

    mailbox    one for each message: what has come is taken in any order, as by the executor of `pipeline`; only a
               true circle of dependencies hangs
    channels   one for each sender, receiver and direction (activation, gradient), each a Comm of its own: a send
               never stands before a receive, and messages are taken in the order they were sent
    stream     one for all operations of a stage, as on an NCCL stream (`World(n, ordered=True)`). 1F1B hangs, unless
               each send is grouped with the receive beside it, as in Megatron-LM. S = 2:
                   stage 0   send F0      send F1   receive B0     send F1 waits for a receive that stands behind
                   stage 1   receive F0   send B0   receive F1     send B0, which waits for one behind send F1
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from .action import Action
from .error import ScheduleError
from .flow import NOUN, Item, Shape

MODELS = ("mailbox", "channels", "stream")


class Op(NamedTuple):
    """A send or a receive that a stage has posted: of `item`, with stage `peer`, for the action at `position`."""

    verb: str
    item: Item
    peer: int
    position: int


class Replay:
    """Lists, run as far as they come. position: the action that each stage is at; waits: the receive it waits for."""

    def __init__(self, lists: Sequence[Sequence[Action]], shape: Shape, comm: str = "mailbox"):
        if comm not in MODELS:
            raise ValueError(
                f"communication is modelled as one of {', '.join(MODELS)}, not as {comm!r}"
            )
        self.lists = lists
        self.shape = shape
        self.comm = comm
        self.position, self.waits = [0] * shape.S, [None] * shape.S
        self.queues: list[dict[tuple, deque[Op]]] = [{} for _ in lists]
        self.changed: list[tuple[int, deque[Op]]] = []  # queues with another first operation
        for stage in range(shape.S):
            self._compute(stage)
        while self.changed:
            self._transfer(*self.changed.pop())

    def _queue(self, stage: int, verb: str, item: Item, peer: int) -> deque[Op]:
        """The queue of a stage in which an operation stands."""
        key = {"mailbox": (verb, item), "channels": (verb, item.what, peer), "stream": ()}[
            self.comm
        ]
        return self.queues[stage].setdefault(key, deque())

    def _post(self, stage: int, op: Op) -> Op:
        queue = self._queue(stage, op.verb, op.item, op.peer)
        queue.append(op)
        self.changed.append((stage, queue))
        return op

    def _compute(self, stage: int) -> None:
        """Go on with a stage's list up to the next action that needs a message, and post its receive."""
        actions, shape = self.lists[stage], self.shape
        while self.position[stage] < len(actions):
            action, position = actions[self.position[stage]], self.position[stage]
            for item in shape.far(stage, action):
                self.waits[stage] = self._post(
                    stage, Op("receive", item, shape.stage(item.part), position)
                )
                return
            self._finish(stage, action)

    def _finish(self, stage: int, action: Action) -> None:
        """The action has all it needs: it runs, and its result is sent to the stage that needs it, if another does."""
        item = self.shape.gives(stage, action)
        part = item.part + {"a": 1, "g": -1}.get(item.what, 0)
        peer = self.shape.stage(part) if 0 <= part < self.shape.S * self.shape.v else stage
        if peer != stage:
            self._post(stage, Op("send", item, peer, self.position[stage]))
        self.position[stage] += 1

    def _transfer(self, stage: int, queue: deque[Op]) -> None:
        """Pass a message on, if the first operation of this queue and its other side are both first."""
        if not queue:
            return
        op, other = queue[0], "receive" if queue[0].verb == "send" else "send"
        there = self._queue(op.peer, other, op.item, stage)
        if there and (there[0].verb, there[0].peer) == (other, stage):
            self.changed += [(stage, queue), (op.peer, there)]
            mine, its = (stage, queue.popleft()), (op.peer, there.popleft())
            if op.verb == "send":
                self._pass(*mine, *its)
            else:
                self._pass(*its, *mine)

    def _pass(self, sender: int, send: Op, receiver: int, receive: Op) -> None:
        """A message has come: the action that waited for it runs, and the list goes on."""
        action = self._action(receiver, receive)
        if send.item != receive.item:
            why = (
                f"the next {NOUN[send.item.what]} that comes from stage {sender} is that of its "
                f"{self._action(sender, send)}: messages arrive in the order they were sent"
            )
            raise ScheduleError(receiver, receive.position, action, why)
        self.waits[receiver] = None
        self._finish(receiver, action)
        self._compute(receiver)

    def _stands(self, stage: int) -> Op | None:
        """The operation that holds a stage up: the receive that it waits for, or what stands before it in its queue."""
        op = self.waits[stage]
        queue = (
            self._queue(stage, op.verb, op.item, op.peer) if op else self.queues[stage].get((), ())
        )
        return queue[0] if queue else None

    def check(self) -> None:
        """Raise ScheduleError if a stage did not come to its end: for the first action in the circle of waits."""
        stage = next((s for s in range(self.shape.S) if self.waits[s]), None)
        if stage is None:
            return
        path: list[int] = []
        while stage not in path:
            path.append(stage)
            stage = self._stands(stage).peer
        circle = path[path.index(stage) :]
        first = min(circle, key=lambda s: (self._stands(s).position, s))
        turn = circle.index(first)
        waits = "; ".join(self._waiting(s) for s in circle[turn:] + circle[:turn])
        op = self._stands(first)
        raise ScheduleError(
            first, op.position, self._action(first, op), f"deadlock in a circle: {waits}"
        )

    def _waiting(self, stage: int) -> str:
        op = self._stands(stage)
        what = f"the {NOUN[op.item.what]} of micro-batch {op.item.micro}"
        if op.verb == "send":
            return f"stage {stage} must send {what} to stage {op.peer}"
        return f"stage {stage} waits at {self._action(stage, op)} for {what} from stage {op.peer}"

    def _action(self, stage: int, op: Op) -> Action:
        return self.lists[stage][op.position]
