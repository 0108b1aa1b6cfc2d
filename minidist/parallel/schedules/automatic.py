"""Zero bubble, searched: a schedule made by letting each stage choose, while the clock of a simulation runs.

Whenever a stage is free it takes what is there: first an I, for the stage before waits for it; then an F, while the
memory limit allows; else a W, which fills the gap until the next message or makes room for an F. Two choices are
tried both ways, and of these four and the hand-written two (if they fit the limit) the one of smallest cost is taken:

    patient   while filling the pipeline: leave out an F that would delay the first I
    eager     into a gap shorter than a W: start the W if this stage has waited most of all, else wait

Limits of S and 2S micro-batches are the paper's ZB-1p and ZB-2p. Found anew by each stage for itself, and the same on
all, as nothing is random. Cost: O(SM log S) a try.
Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 3.1 (the heuristic; there is also an ILP).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import product

from .action import Action, check, lists
from .memory import kept
from .simulate import simulate
from .zero_bubble import zb_h1, zb_h2


def zb_auto(
    stage: int,
    S: int,
    M: int,
    forward: float | Sequence[float] = 1.0,
    input: float | Sequence[float] = 1.0,
    weight: float | Sequence[float] = 1.0,
    comm: float = 0.0,
    limit: float | None = None,
    rest: float = 1.0,
) -> list[Action]:
    """The list of one stage of the schedule that the search finds; see `search`."""
    check(stage, S, M)
    return search(S, M, forward, input, weight, comm, limit, rest)[stage]


def search(
    S: int,
    M: int,
    forward: float | Sequence[float] = 1.0,
    input: float | Sequence[float] = 1.0,
    weight: float | Sequence[float] = 1.0,
    comm: float = 0.0,
    limit: float | None = None,
    rest: float = 1.0,
) -> list[list[Action]]:
    """The lists of all stages.

    forward, input, weight: the time of an F, I, W, one or one for each stage.  comm: of a message.
    limit: micro-batches whose activations a stage may keep, by default 2S.  rest: the share of a micro-batch's
    activations that stays between its I and its W.
    Raises ValueError for a limit below 1, and for a rest outside 0 … 1.
    """
    check(0, S, M)
    limit = 2 * S if limit is None else limit
    if limit < 1 or not 0 <= rest <= 1:
        raise ValueError(
            f"a stage keeps at least 1 micro-batch, not {limit}, and of it a share of 0 to 1 until its W, "
            f"not {rest}"
        )
    times = {
        kind: [t] * S if isinstance(t, int | float) else list(t)
        for kind, t in (("F", forward), ("I", input), ("W", weight))
    }
    found = [
        _Plan(S, M, times, comm, limit, rest, *choices).lists
        for choices in product((True, False), repeat=2)
    ]
    by_hand = [lists(schedule, S, M) for schedule in (zb_h1, zb_h2)]
    found += [
        every
        for every in by_hand
        if all(max(kept(actions, 1.0, rest)) <= limit for actions in every)
    ]
    return min(
        found,
        key=lambda every: simulate(every, times["F"], None, times["I"], times["W"], comm).cost,
    )


class _Plan:
    """One try. done: of each stage, how many of each kind; came: when what an F or I needs is there, once known."""

    def __init__(
        self,
        S: int,
        M: int,
        times: dict,
        comm: float,
        limit: float,
        rest: float,
        patient: bool,
        eager: bool,
    ):
        self.S = S
        self.M = M
        self.times = times
        self.comm = comm
        self.limit = limit
        self.rest = rest
        self.patient, self.eager = patient, eager
        self.lists: list[list[Action]] = [[] for _ in range(S)]
        self.done = [dict.fromkeys("FIW", 0) for _ in range(S)]
        self.kept, self.free, self.waited = ([0.0] * S for _ in range(3))
        self.came = [{"F": {}, "I": {}} for _ in range(S)]
        self.came[0]["F"] = dict.fromkeys(range(M), 0.0)
        self.events = [(0.0, stage) for stage in range(S)]
        while self.events:
            now, stage = heapq.heappop(self.events)
            if now >= self.free[stage] and self.done[stage]["W"] < M:
                self._choose(stage, now)

    def _choose(self, stage: int, now: float) -> None:
        """Start an action of a free stage, or wait for the next thing that is known to come, or for any."""
        done, room = self.done[stage], self.kept[stage] + 1 <= self.limit * (1 + 1e-9)
        gradient = self.came[stage]["I"].get(done["I"])
        activation = self.came[stage]["F"].get(done["F"]) if room else None
        filling = self.patient and not done["I"] and gradient is not None
        if gradient is not None and gradient <= now:
            return self._start(stage, "I", now)
        if (
            activation is not None
            and activation <= now
            and not (filling and gradient - now < self.times["F"][stage])
        ):
            return self._start(stage, "F", now)
        coming = min((t for t in (gradient, activation) if t is not None and t > now), default=None)
        if done["W"] < done["I"] and self._fills(stage, coming, now):
            return self._start(stage, "W", now)
        if coming is not None:
            heapq.heappush(self.events, (coming, stage))
        return None

    def _fills(self, stage: int, coming: float | None, now: float) -> bool:
        """Whether a W is started into the gap until `coming`: if it fits, or if this stage would wait most of all."""
        if coming is None or coming - now >= self.times["W"][stage]:
            return True
        return self.eager and self.waited[stage] + coming - now >= max(self.waited)

    def _start(self, stage: int, kind: str, now: float) -> None:
        """Run an action; tell the neighbour when its result comes."""
        done = self.done[stage]
        micro, end = done[kind], now + self.times[kind][stage]
        self.waited[stage] += (now - self.free[stage]) * bool(done["F"])
        done[kind], self.free[stage] = micro + 1, end
        self.kept[stage] += {"F": 1.0, "I": self.rest - 1, "W": -self.rest}[kind]
        self.lists[stage].append(Action(kind, micro))
        heapq.heappush(self.events, (end, stage))
        if kind == "F" and stage == self.S - 1:
            self.came[stage]["I"][micro] = end
        peer = stage + {"F": 1, "I": -1, "W": self.S}[kind]
        if 0 <= peer < self.S:
            self.came[peer][kind][micro] = end + self.comm
            heapq.heappush(self.events, (now, peer))
