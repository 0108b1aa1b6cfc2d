"""How long a schedule takes, from the times of its actions; and a schedule that is found by looking at the clock.

A stage does one action at a time. An action begins when the stage is free and what it needs has come: from another
stage `comm` seconds after it was made there. Messages overlap with computation and do not wait for each other (as the
zero-bubble paper's own estimate has it; a World's wires are not modelled here).

    simulate   the stages follow their lists          grid   the same as text, with the bubble
    search     the stages choose for themselves: the zero-bubble paper's heuristic

    time     from the first action to the last, of all stages
    cost     the longest time of a stage, from its own first action to its own last: what a step costs if the
             next step may begin on a stage that is done (Qi et al. 2023, section 5: "the largest execution time of all
             stages"), equal to `time` where stage 0 begins first and ends last
    bubble   1 − busy/time, bubble_rate 1 − busy/cost, with busy the mean over the stages

Cost: O(log S) an action. Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", sections 3.1 and 5.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import product
from math import inf
from typing import NamedTuple

from .schedules import (
    Action,
    Item,
    Lists,
    Shape,
    activations_kept,
    check_stage,
    lists,
    shape_of,
    zb_h1,
    zb_h2,
)

Times = float | Sequence[float]


class Span(NamedTuple):
    """An action of a stage, and when it ran, in the unit of the times that were given.

    >>> from minidist.parallel.schedules import gpipe, lists
    >>> from minidist.parallel.simulate import simulate
    >>> simulate(lists(gpipe, S=2, M=3)).spans[1][0]
    Span(stage=1, action=F0, start=1.0, end=2.0)
    """

    stage: int
    action: Action
    start: float
    end: float


class Simulation(NamedTuple):
    """A schedule that was run on paper. spans: for each stage, its actions in order.

    >>> from minidist.parallel.schedules import gpipe, lists
    >>> from minidist.parallel.simulate import simulate
    >>> run = simulate(lists(gpipe, S=2, M=3))  # F takes 1, B 2
    >>> run.time, run.busy, run.bubble  # (S−1)/(M+S−1)
    (12.0, [9.0, 9.0], 0.25)
    """

    spans: list[list[Span]]

    @property
    def time(self) -> float:
        """From the first action of all to the last."""
        rows = [row for row in self.spans if row]
        return max(row[-1].end for row in rows) - min(row[0].start for row in rows)

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


class Clock:
    """Stages at work. spans: what each has done so far.

    times: for each kind of action, and each stage, how long it takes.  comm: how long a message takes.

    >>> from minidist.parallel.schedules import Action, Shape
    >>> from minidist.parallel.simulate import Clock
    >>> clock = Clock(Shape(S=2, M=1), {"F": [1.0, 2.0]}, comm=0.5)
    >>> def choose(stage, now):  # one forward on each stage, when its input is there
    ...     forward = Action("F", 0)
    ...     begun = clock.spans[stage]
    ...     return None if begun or clock.comes(stage, forward) > now else forward
    >>> clock.run(choose)
    >>> clock.spans[1]  # a message later than the forward of stage 0
    [Span(stage=1, action=F0, start=1.5, end=3.5)]
    """

    def __init__(self, shape: Shape, times: dict[str, list[float]], comm: float):
        self.shape = shape
        self.times = times
        self.comm = comm
        self.spans: list[list[Span]] = [[] for _ in range(shape.S)]
        self._made: dict[Item, float] = {}

    def free(self, stage: int) -> float:
        """When a stage has done what it has begun."""
        return self.spans[stage][-1].end if self.spans[stage] else 0.0

    def comes(self, stage: int, action: Action) -> float:
        """When all is there that an action needs; infinity as long as nobody has begun to make it."""
        return max(
            (self._there(stage, item) for item in self.shape.needs(stage, action)), default=0.0
        )

    def run(self, choose: Callable[[int, float], Action | None]) -> None:
        """Whenever a stage is done or something has come for it, it chooses: choose(stage, now) is its next action, or
        None to wait. It ends when nothing happens any more."""
        events = [(0.0, stage) for stage in range(self.shape.S)]
        while events:
            now, stage = heapq.heappop(events)
            action = choose(stage, now) if now >= self.free(stage) else None
            if action is None:
                continue
            end = now + self.times[action.kind][stage]
            self.spans[stage].append(Span(stage, action, now, end))
            item = self.shape.gives(stage, action)
            self._made[item] = end
            heapq.heappush(events, (end, stage))
            receiver = self.shape.goes_to(item)
            if receiver is not None:
                heapq.heappush(events, (self._there(receiver, item), receiver))

    def _there(self, stage: int, item: Item) -> float:
        """When an item is there for a stage."""
        return self._made.get(item, inf) + self.comm * (self.shape.stage(item.part) != stage)


def simulate(
    lists: Lists,
    forward: Times = 1.0,
    backward: Times | None = None,
    input: Times = 1.0,
    weight: Times = 1.0,
    comm: float = 0.0,
    update: Times = 0.0,
    place: str = "loop",
    waits: Callable[[int, Action], bool] = lambda stage, action: True,
) -> Simulation:
    """Run the lists of all stages on paper.

    forward, input, weight, update: the time of one F, I, W, U (of one chunk, if a stage has several); backward: of
    one B, by default input + weight. Each a number, or one number for each stage.  comm: from the end of an action to
    the beginning of the one on another stage that needs its result.  place: "loop" or "V", see `schedules`.
    waits: whether an action of a stage waits for its message (default: each does).
    Raises ValueError for times of the wrong number, and for lists that cannot run to their end: `validate` says why.

    >>> from minidist.parallel.schedules import lists, one_f_one_b
    >>> from minidist.parallel.simulate import simulate
    >>> simulate(lists(one_f_one_b, S=4, M=8)).time  # (M + S − 1) times F and B
    33.0
    >>> simulate(lists(one_f_one_b, S=4, M=8), forward=[1, 1, 1, 2]).time  # all wait for it
    41.0
    """
    shape = shape_of(lists, place)
    durations = {"forward": forward, "input": input, "weight": weight, "update": update}
    times = {name[0].upper(): _by_stage(t, shape.S, name) for name, t in durations.items()}
    both = [i + w for i, w in zip(times["I"], times["W"], strict=True)]
    times["B"] = both if backward is None else _by_stage(backward, shape.S, "backward")
    clock = Clock(shape, times, comm)

    def follow(stage: int, now: float) -> Action | None:
        done = len(clock.spans[stage])
        if done == len(lists[stage]):
            return None
        action = lists[stage][done]
        come = clock.comes(stage, action) <= now or not waits(stage, action)
        return action if come else None

    clock.run(follow)
    for stage, (actions, row) in enumerate(zip(lists, clock.spans, strict=True)):
        if len(row) < len(actions):
            raise ValueError(
                f"stage {stage} never comes to {actions[len(row)]}, its action {len(row)} of "
                f"{len(actions)}: validate says what it misses"
            )
    return Simulation(clock.spans)


def _by_stage(times: Times, S: int, name: str) -> list[float]:
    """A time for each stage, all at least 0."""
    row = [times] * S if isinstance(times, int | float) else list(times)
    if len(row) != S:
        raise ValueError(f"{len(row)} {name} times were given for {S} stages")
    for stage, time in enumerate(row):
        if time < 0:
            raise ValueError(
                f"a {name} takes no time less than 0, and stage {stage} was given {time}"
            )
    return row


def grid(lists: Lists, place: str = "loop") -> str:
    """A schedule as text: a row for each stage, a column for each slot of time. F, I, W and U take one, B two.

    stage 0  F0 F1 .  .  B0 ── F2 B1 ── …           an action that takes two slots goes on as ──
    stage 1  .  F0 B0 ── F1 B1 ── F2 …              .   the stage waits
    Raises ValueError for lists that cannot run to their end.

    >>> from minidist.parallel.schedules import lists, one_f_one_b
    >>> from minidist.parallel.simulate import grid
    >>> print(grid(lists(one_f_one_b, S=2, M=2)))
    stage 0  F0 F1 .  .  B0 ── .  B1 ──
    stage 1  .  F0 B0 ── F1 B1 ── .  .
    """
    run = simulate(lists, update=1.0, place=place)
    slots = max(round(row[-1].end) for row in run.spans if row)
    rows = [["."] * slots for _ in run.spans]
    for row, spans in zip(rows, run.spans, strict=True):
        for span in spans:
            first, end = round(span.start), round(span.end)
            row[first:end] = [str(span.action)] + ["─"] * (end - first - 1)
    width = max(len(word) for row in rows for word in row)
    name = len(f"stage {len(rows) - 1}")
    lines = []
    for stage, row in enumerate(rows):
        words = ["─" * width if word == "─" else word.ljust(width) for word in row]
        lines.append(f"{f'stage {stage}':<{name}}  {' '.join(words)}".rstrip())
    return "\n".join(lines)


# ------------------------------------------------------------
# Zero bubble, searched: a schedule made by letting each stage choose, while the clock runs.
#
# Whenever a stage is free it takes what is there: first an I, for the stage before waits for it; then an F, while the
# memory limit allows; else a W, which fills the gap until the next message or makes room for an F. Two choices are
# tried both ways, and of these four and the hand-written two (if they fit the limit) the one of smallest cost is taken:
#
#     patient   while filling the pipeline: leave out an F that would delay the first I
#     eager     into a gap shorter than a W: start the W if this stage has waited most of all, else wait
#
# Limits of S and 2S micro-batches are the paper's ZB-1p and ZB-2p.


def zb_auto(stage: int, S: int, M: int, **how) -> list[Action]:
    """The list of one stage of the schedule that `search` finds, with the same arguments. Each stage searches for
    itself, and finds the same: nothing is random.
    Raises ValueError for a stage that is not 0 … S − 1, and as `search` does.

    >>> from minidist.parallel.simulate import zb_auto
    >>> print(*zb_auto(stage=1, S=2, M=3))
    F0 I0 F1 I1 F2 I2 W0 W1 W2
    >>> print(*zb_auto(stage=1, S=2, M=3, limit=2))  # F2 has to wait for the memory of W0
    F0 I0 F1 I1 W0 F2 I2 W1 W2
    """
    check_stage(stage, S, M)
    return search(S, M, **how)[stage]


def search(
    S: int,
    M: int,
    forward: Times = 1.0,
    input: Times = 1.0,
    weight: Times = 1.0,
    comm: float = 0.0,
    limit: float | None = None,
    rest: float = 1.0,
) -> list[list[Action]]:
    """The lists of all stages.

    forward, input, weight: the time of an F, I, W, one or one for each stage.  comm: of a message.
    limit: micro-batches whose activations a stage may keep, by default 2S.  rest: the share of a micro-batch's
    activations that stays between its I and its W.
    Raises ValueError for a limit below 1, and for a rest outside 0 … 1.

    >>> from minidist.parallel.schedules import in_flight, lists, zb_h1
    >>> from minidist.parallel.simulate import search, simulate
    >>> times = dict(forward=2.0, input=3.0, weight=1.0, comm=0.5)
    >>> by_hand, found = lists(zb_h1, S=4, M=8), search(4, 8, **times)
    >>> simulate(by_hand, **times).cost, simulate(found, **times).cost  # of which 48 are work
    (66.0, 59.0)
    >>> [max(in_flight(actions) for actions in each) for each in (by_hand, found)]  # for memory
    [4, 8]
    """
    shape = Shape(S, M).checked()
    limit = 2 * S if limit is None else limit
    if limit < 1 or not 0 <= rest <= 1:
        raise ValueError(
            f"a stage keeps at least 1 micro-batch, not {limit}, and of it a share of 0 to 1 until its W, "
            f"not {rest}"
        )
    durations = {"forward": forward, "input": input, "weight": weight}
    times = {name[0].upper(): _by_stage(t, S, name) for name, t in durations.items()}
    candidates = []
    for patient, eager in product((True, False), repeat=2):
        clock = Clock(shape, times, comm)
        clock.run(_chooser(clock, limit * (1 + 1e-9), rest, patient, eager))
        candidates.append([[span.action for span in row] for row in clock.spans])
    for by_hand in (lists(zb_h1, S, M), lists(zb_h2, S, M)):
        if max(max(activations_kept(actions, rest)) for actions in by_hand) <= limit:
            candidates.append(by_hand)
    return min(candidates, key=lambda each: simulate(each, forward, None, input, weight, comm).cost)


def _chooser(
    clock: Clock, limit: float, rest: float, patient: bool, eager: bool
) -> Callable[[int, float], Action | None]:
    """What a free stage does next: I before F before W."""
    S, M = clock.shape.S, clock.shape.M
    done = [{"F": 0, "I": 0, "W": 0} for _ in range(S)]
    waited = [0.0] * S

    def comes(stage: int, kind: str) -> float:
        """When the next action of a kind can begin."""
        micro = done[stage][kind]
        return clock.comes(stage, Action(kind, micro)) if micro < M else inf

    def start(stage: int, kind: str, now: float) -> Action:
        if done[stage]["F"]:
            waited[stage] += now - clock.free(stage)
        done[stage][kind] += 1
        return Action(kind, done[stage][kind] - 1)

    def choose(stage: int, now: float) -> Action | None:
        F, I, W = done[stage].values()
        gradient = comes(stage, "I")
        has_room = F + 1 - (1 - rest) * I - rest * W <= limit
        activation = comes(stage, "F") if has_room else inf
        delays = patient and not I and gradient - now < clock.times["F"][stage]
        if gradient <= now:
            return start(stage, "I", now)
        if activation <= now and not delays:
            return start(stage, "F", now)
        gap = (gradient if activation <= now else min(gradient, activation)) - now
        fits = gap >= clock.times["W"][stage] or (eager and waited[stage] + gap >= max(waited))
        return start(stage, "W", now) if comes(stage, "W") <= now and fits else None

    return choose
