"""What the exercises of lesson 24 are held against, and the same with one slip: what a wrong answer looks like.

Emptied in the process of an answer: no way to ask. Sources: Stich 2019, Algorithm 1; Wang and Joshi 2019, section 4;
Douillard et al. 2023, Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor


def stepped(p: Tensor, noise: Tensor, samples: int) -> Tensor:
    """A local step: not linear, so that when ranks meet matters. Without samples there is none."""
    return (p + noise).sin() * 3 if samples else p


def weighted(own: Sequence[Tensor], samples: Sequence[int]) -> Tensor:
    """The mean of all ranks' parameters, by their samples."""
    return sum(p * c for p, c in zip(own, samples)) / sum(samples)


def local(
    values: Sequence[Tensor],
    noises: Sequence[Sequence[Tensor]],
    samples: Sequence[Sequence[int]],
    meets: set[int],
) -> list[list[Tensor]]:
    """Every rank's parameter before each step and at the end. noises[r][t], samples[r][t]; meets: after so many steps."""
    now = list(values)
    seen = [list(values)]
    first = 0
    for t in range(len(noises[0])):
        now = [stepped(p, some[t], own[t]) for p, some, own in zip(now, noises, samples)]
        if t + 1 in meets:
            now = [weighted(now, [sum(own[first : t + 1]) for own in samples])] * len(now)
            first = t + 1
        seen.append(list(now))
    return seen


def outer(
    anchor: Tensor, own: Sequence[Tensor], u: Tensor, eta: float, beta: float, slip: str = ""
) -> tuple[Tensor, Tensor]:
    """The new parameters, and the momentum, after a period."""
    mean = sum(own) / len(own)
    way = {"sign": mean - anchor, "lesson": (anchor - mean) / eta}.get(slip, anchor - mean)
    new = beta * u + {"average of ways": (1 - beta) * way}.get(slip, way)
    step = {
        "heavy ball": new,
        "lesson": new,
        "no way": beta * new,
        "old momentum": way + new,
        "no beta": way + u,
    }
    start = mean if slip == "from the average" else anchor
    return start - eta * step.get(slip, way + beta * new), new


def fair(
    steepness: Sequence[float], rate: float, steps: Sequence[int], slip: str = ""
) -> list[float]:
    """Weights of an average that rests where the mean loss has its minimum."""
    most = max(steps)
    found = []
    for a, H in zip(steepness, steps):
        walked = 1 - (1 - rate * a) ** (most if slip == "one H" else H)
        found.append(
            {
                "lesson": walked,
                "inverse": walked / a,
                "no steepness": 1 / walked,
                "steps only": 1 / H,
                "alike": 1.0,
                "steepness only": a,
                "squared": a * a / walked,
                "one step more": a / (1 - (1 - rate * a) ** (H + 1)),
            }.get(slip, a / walked)
        )
    total = {"not normalized": 1.0, "by n": float(len(found))}.get(slip, sum(found))
    return [w / total for w in found]


def period(
    losses: Sequence[float],
    rates: Sequence[float],
    periods: Sequence[int],
    tau_0: int,
    shrink: float,
    slip: str = "",
) -> int:
    """The next τ."""
    if not periods:
        return tau_0
    up = {"floor": math.floor, "one more": lambda x: int(x) + 1}.get(slip, math.ceil)
    power = {"no rate": 0.0, "root": 0.5, "rate": 1.0, "no root": 3.0, "inverse": -1.5}
    of = rates[-2] if slip == "last rate" else rates[0]
    found = up(math.sqrt(losses[-1] / losses[0]) * (of / rates[-1]) ** power.get(slip, 1.5) * tau_0)
    lowered = rates[-1] < (rates[0] if slip == "below the first" else rates[-2])
    if (lowered and slip != "never up") or found < periods[-1]:
        return found
    if slip == "equal" and found == periods[-1]:
        return found
    return math.ceil(shrink * periods[-1])
