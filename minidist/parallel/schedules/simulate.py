"""How long a schedule takes, from the times of its actions: every action begins as soon as it can.

A stage does its list in order, one action at a time. An action begins when the one before it is done and what it
needs from another stage has come: `comm` seconds after it was made there. Messages overlap with computation and do
not wait for each other (as the zero-bubble paper's own estimate has it; a World's wires are not modelled here).

    time     from the first action to the last, of all stages
    cost     the longest time of a stage, from its own first action to its own last: what a step costs if the
             next step may begin on a stage that is done (Qi et al. 2023, section 5: "the largest execution time of all
             stages"), equal to `time` where stage 0 begins first and ends last
    bubble   1 − busy/time, bubble_rate 1 − busy/cost, with busy the mean over the stages
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .action import Action
from .flow import Shape, shape_of

Waits = Callable[[int, Action], bool]
Times = float | Sequence[float] | Sequence[Sequence[float]]


class Span(NamedTuple):
    """An action of a stage, and when it ran, in the unit of the times that were given."""

    stage: int
    action: Action
    start: float
    end: float


class Simulation(NamedTuple):
    """A schedule that was run on paper.

    spans: for each stage, its actions in order.  stuck: for each stage, the action that it never comes to, or None.
    """

    spans: list[list[Span]]
    stuck: list[Action | None]

    @property
    def time(self) -> float:
        """From the first action of all to the last."""
        return max(row[-1].end for row in self.spans if row) - min(
            row[0].start for row in self.spans if row
        )

    @property
    def cost(self) -> float:
        """The longest time of a stage, from its own first action to its own last."""
        return max(row[-1].end - row[0].start for row in self.spans if row)

    @property
    def busy(self) -> list[float]:
        """For each stage, the time it computes."""
        return [sum(span.end - span.start for span in row) for row in self.spans]

    @property
    def bubble(self) -> float:
        """The share of all stages' time in which nothing is computed, from the first action of all to the last."""
        return 1 - sum(self.busy) / len(self.spans) / self.time

    @property
    def bubble_rate(self) -> float:
        """(cost − m(T_F + T_B + T_W))/cost of the zero-bubble paper, with the mean over the stages if they differ."""
        return 1 - sum(self.busy) / len(self.spans) / self.cost


def simulate(
    lists: Sequence[Sequence[Action]],
    forward: Times = 1.0,
    backward: Times | None = None,
    input: Times = 1.0,
    weight: Times = 1.0,
    comm: float = 0.0,
    update: Times = 0.0,
    place: str = "loop",
    waits: Waits | None = None,
    partly: bool = False,
) -> Simulation:
    """Run the lists of all stages on paper.

    forward, input, weight, update: the time of one F, I, W, U (of one chunk, if a stage has several); backward: of
    one B, by default input + weight. Each a number, or one number for each stage, or for each stage one for each
    chunk. comm: from the end of an action to the beginning of the one on another stage that needs its result.
    place: "loop" or "V", see `flow`.  waits: whether an action of a stage waits for its message (default: each does).
    partly: lists may hang: they are run as far as they come.
    Raises ValueError for times of the wrong number, and for lists that cannot run to their end: `validate` says why.
    """
    shape = shape_of([list(actions) for actions in lists], place)
    input, weight = (_table(t, shape, n) for t, n in ((input, "input"), (weight, "weight")))
    both = [[i + w for i, w in zip(*pair)] for pair in zip(input, weight)]
    times = {
        "F": _table(forward, shape, "forward"),
        "I": input,
        "W": weight,
        "U": _table(update, shape, "update"),
        "B": both if backward is None else _table(backward, shape, "backward"),
    }
    spans = _run(lists, shape, times, comm, waits or (lambda stage, action: True))
    stuck = [
        actions[len(row)] if len(row) < len(actions) else None for row, actions in zip(spans, lists)
    ]
    for stage, action in enumerate([] if partly else stuck):
        if action:
            raise ValueError(
                f"stage {stage} never comes to {action}, its action {len(spans[stage])} of "
                f"{len(lists[stage])}: validate says what it misses"
            )
    return Simulation(spans, stuck)


def _run(lists, shape: Shape, times: dict, comm: float, waits: Waits) -> list[list[Span]]:
    """Events in the order of time: at each, a stage is done with an action, and who waited for it may begin."""
    spans: list[list[Span]] = [[] for _ in lists]
    made = {}
    waiting = {}
    events = []

    def begin(stage: int, now: float) -> None:
        """Start the next action of a stage that is free, or note what it waits for."""
        if len(spans[stage]) == len(lists[stage]):
            return
        action = lists[stage][len(spans[stage])]
        for item in shape.needs(stage, action):
            own = shape.stage(item.part) == stage
            if not own and not waits(stage, action):
                continue
            if item not in made:
                waiting.setdefault(item, []).append(stage)
                return
            now = max(now, made[item] + comm * (not own))
        end = now + times[action.kind][stage][action.chunk]
        spans[stage].append(Span(stage, action, now, end))
        heapq.heappush(events, (end, stage))

    for stage in range(shape.S):
        begin(stage, 0.0)
    while events:
        now, stage = heapq.heappop(events)
        item = shape.gives(stage, spans[stage][-1].action)
        made[item] = now
        begin(stage, now)
        for other in waiting.pop(item, []):
            begin(other, spans[other][-1].end if spans[other] else 0.0)
    return spans


def _table(times: Times, shape: Shape, name: str) -> list[list[float]]:
    """Times for each stage and chunk, all at least 0."""
    rows = [times] * shape.S if isinstance(times, int | float) else list(times)
    if len(rows) != shape.S:
        raise ValueError(f"{len(rows)} {name} times were given for {shape.S} stages")
    table = [[row] * shape.v if isinstance(row, int | float) else list(row) for row in rows]
    for stage, row in enumerate(table):
        if len(row) != shape.v:
            raise ValueError(
                f"{len(row)} {name} times were given for the {shape.v} chunks of stage {stage}"
            )
        if min(row) < 0:
            raise ValueError(
                f"a {name} takes no time less than 0, and stage {stage} was given {min(row)}"
            )
    return table
