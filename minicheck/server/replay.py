"""What must follow from an order of updates: the weights, the versions that workers had, staleness and the bound.

Update i makes version i + 1. After each of them the server answers who may go on; so a worker's next weights are the
first version, from its own push on, at which it may. Nothing that an answer reports is believed but this order, and the
order only if all gradients fit: they are calculated here again.
"""

from __future__ import annotations

import math

from torch import Tensor

from ..compare import alike
from ..data_parallel.averages import near
from ..wrong import Wrong
from .work import Gradient


def replayed(
    args: list[tuple], results: list[dict], steps: list[int], bound: float, rate: float
) -> None:
    """Raise Wrong unless all that the ranks report follows from the order of the updates."""
    log = _log(results[0]["log"], steps)
    if results[0]["seen"]:
        raise Wrong("rank 0 is the server, and calls gradient(w): workers do.")
    for k, most in enumerate(steps):
        if len(results[k + 1]["seen"]) != most:
            called = len(results[k + 1]["seen"])
            raise Wrong(
                f"rank {k + 1}: gradient(w) is called {called} times, and should be once in each of its {most} "
                "steps."
            )
    works = [Gradient(*some[1]) for some in args[1:]]
    states, clocks = [args[0][0]], [[0] * len(steps)]
    for i, (rank, stale) in enumerate(log):
        k, clock = rank - 1, list(clocks[-1])
        t = clock[k]
        v = _version(k, t, results[rank]["seen"][t], states, args)
        _allowed(k, t, v, clocks, log, steps, bound)
        if stale != i - v:
            hint = (
                "The worker's own push does not count, those of others do."
                if stale == i - v + 1
                else "It counts the updates between the weights that the gradient is of and those that it is added to."
            )
            raise Wrong(
                f"update {i}, by rank {rank}: its staleness is said to be {stale}, and is {i - v}: its "
                f"gradient is of version {v}, and is added to version {i}. {hint}"
            )
        states.append(states[-1] - rate * works[k].of(states[v], t))
        clock[k] += 1
        clocks.append(clock)
    got = results[0]["w"]
    alike(0, got, states[-1], "w in the end")
    if not near(got, states[-1]):
        hint = (
            "The last update is missing."
            if near(got, states[-2])
            else "Is it `w` itself, in place, that is stepped?"
            if near(got, states[0])
            else "w −= rate·g, for each push."
        )
        raise Wrong(f"rank 0: w is wrong in the end. {hint}")


def _log(log, steps: list[int]) -> list[tuple[int, int]]:
    if log is None:
        raise Wrong(
            "rank 0 returns None, and should return a list of (rank, staleness). Is there a `return`?"
        )
    if not isinstance(log, list) or not all(_pair(entry) for entry in log):
        raise Wrong(
            "rank 0 should return a list of (rank, staleness), two integers for each update."
        )
    if len(log) != sum(steps):
        raise Wrong(
            f"{len(log)} updates are reported, and the workers have {sum(steps)} steps: every push is an "
            "update of its own."
        )
    for k, most in enumerate(steps):
        count = sum(rank == k + 1 for rank, _ in log)
        if count != most:
            raise Wrong(
                f"{count} updates are said to be rank {k + 1}'s, which has {most} steps. Workers are ranks 1 "
                f"to {len(steps)}: push.source says whose it was."
            )
    return [(int(rank), int(stale)) for rank, stale in log]


def _pair(entry) -> bool:
    return isinstance(entry, tuple | list) and [type(x) for x in entry] == [int, int]


def _version(k: int, t: int, seen, states: list[Tensor], args: list[tuple]) -> int:
    """Which version the worker's step t was computed with."""
    alike(k + 1, seen, states[0], f"the w that gradient is called with in step {t}")
    found = next((v for v in reversed(range(len(states))) if near(seen, states[v])), None)
    if found is None:
        own = (
            "They are this rank's own: a step begins with a pull."
            if near(seen, args[k + 1][0])
            else "Each push is a step of its own, w − rate·g, no mean. And weights that are being sent must not be stepped."
        )
        raise Wrong(
            f"rank {k + 1}: in its step {t} gradient(w) is called with weights that the server never had. "
            f"{own}"
        )
    return found


def _allowed(
    k: int, t: int, v: int, clocks: list[list[int]], log: list, steps: list[int], bound: float
) -> None:
    """The version must be the first at which worker k might begin its step t."""
    others = [rank for rank, _ in log[: len(clocks) - 1]]
    begin = 1 + max((i for i, rank in enumerate(others) if rank == k + 1), default=-1)

    def ahead(version: int) -> int:
        running = [c for c, most in zip(clocks[version], steps, strict=True) if c < most]
        return clocks[version][k] - min(running)

    if v < begin:
        raise Wrong(
            f"rank {k + 1}: its step {t} is computed with version {v}, from before its own last push, which "
            f"made version {begin}."
        )
    right = next(
        (version for version in range(begin, len(clocks)) if ahead(version) <= bound), None
    )
    if right is None or v < right:
        raise Wrong(
            f"rank {k + 1} begins its step {t} when it is {ahead(v)} ahead of the slowest, and the bound is "
            f"{bound}: clocks {clocks[v]}."
        )
    if v > right:
        why = (
            "every push is answered at once"
            if bound == math.inf
            else f"it is {ahead(right)} ahead of the slowest that still works, the bound is {bound}"
        )
        raise Wrong(
            f"rank {k + 1} may begin its step {t} with version {right}, clocks {clocks[right]}: {why}. It gets "
            f"version {v}: it waits without need."
        )
