"""The right answers of lesson 22's exercises. Emptied in the process of an answer: no way to ask.

Memory of a stage as Narayanan et al. 2021, section 2, with ZeRO's stages (Rajbhandari et al. 2020); FLOPs of attention
as Chowdhery et al. 2022, appendix B, and Dao et al. 2022.
"""

from __future__ import annotations

from math import exp, log
from statistics import mean

DECISIONS = ("shape", "chunks", "zero", "recompute", "micro_batch")
BYTES = {"weights": 2, "gradients": 4, "optimizer": 12}
SHARDED_FROM = {"weights": 3, "gradients": 2, "optimizer": 1}  # ZeRO's stage


def stage_layers(layers, stages, s) -> int:
    """What does not divide evenly goes to the stages behind the first, from stage 1 on."""
    return layers // stages + (1 <= s <= layers % stages)


def stage_bytes(
    hidden, vocab, tokens, layers, stages, tensor, data, zero, micro_batch, micro_batches
) -> list[float]:
    """Of a rank of each stage, at the end of its warm-up."""
    found = []
    for s in range(stages):
        own = stage_layers(layers, stages, s)
        ends = (s == 0) + (s == stages - 1)
        parameters = (own * 12 * hidden**2 + ends * vocab * hidden) / tensor
        per = sum(n / (data if zero >= SHARDED_FROM[what] else 1) for what, n in BYTES.items())
        under_way = min(stages - s, micro_batches)
        kept = own * under_way * 34 * micro_batch * tokens * hidden / tensor
        logits = (s == stages - 1) * 6 * micro_batch * tokens * vocab / tensor
        found.append(parameters * per + kept + logits)
    return found


def choose(estimates, capacity, error) -> list[str]:
    fitting = {name: values for name, values in estimates.items() if values[0] <= capacity}
    fastest = min(seconds for _, seconds, _ in fitting.values())
    equal = [name for name, values in fitting.items() if values[1] <= (1 + error) * fastest]
    return sorted(equal, key=lambda name: (fitting[name][2], fitting[name][1]))


def changed(one, other) -> list[str]:
    return [name for name in DECISIONS if one[name] != other[name]]


def improve(estimates, start) -> tuple[list, int]:
    steps = []
    at = start
    while True:
        here = estimates[at]
        near = [i for i, e in enumerate(estimates) if e["fits"] and len(changed(e, here)) == 1]
        to = min(near, key=lambda i: estimates[i]["seconds"], default=at)
        saved = here["seconds"] - estimates[to]["seconds"]
        if saved <= 0:
            return steps, at
        steps.append((changed(estimates[to], here)[0], saved))
        at = to


def pairs(tokens, window) -> int:
    """Of a query and a key that it looks at, in one sequence."""
    return sum(min(i + 1, window or tokens) for i in range(tokens))


def utilizations(parameters, layers, hidden, tokens, window, rate, peak) -> dict[str, float]:
    looked_at = pairs(tokens, window) / tokens
    keys = {"convention": 12 * tokens, "needed": 12 * looked_at, "executed": 14 * looked_at}
    return {
        name: rate * (6 * parameters + layers * hidden * times) / peak
        for name, times in keys.items()
    }


def factor(tables) -> float:
    """For which the mean over tables of the mean squared ln(factor · x / published) is least."""
    return exp(mean(mean(log(said / x) for x, said in rows) for rows in tables))


def errors(tables) -> dict[str, tuple[float, float]]:
    found = {}
    for name, rows in tables.items():
        others = [rows for other, rows in tables.items() if other != name]
        of = [factor(list(tables.values())), factor(others)]
        found[name] = tuple(mean(abs(c * x / said - 1) for x, said in rows) for c in of)
    return found
