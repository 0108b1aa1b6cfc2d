"""What an answer must not call: lists with updates, and the weights that PipeDream ends with, by a loop on one rank.

Source: Narayanan et al. 2019, "PipeDream", section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from .pipelines import words


def updated(kind: str, stage: int, S: int, M: int, every: int) -> list[str]:
    """Lesson 16's lists, with an update after every `every` backwards, and after the last.

    "last in": all forwards, then the backwards in the other order.  "put off": 1F1B, in which every second stage
    makes an update only after the next backward.
    """
    given = words({"last in": "gpipe", "put off": "1f1b"}.get(kind, kind), stage, S, M)
    rows, done = [], 0
    waiting: list[str] = []
    for word in given if kind != "last in" else given[:M] + given[: M - 1 : -1]:
        rows.append(word)
        if word[0] == "B":
            done += 1
            update = [f"U{word[1:]}"] if done % every == 0 or done == M else []
            if kind == "put off" and stage % 2:
                update, waiting = waiting, update
            rows += update
    return rows + waiting


def within(stage: int, S: int, M: int, room: Sequence[int]) -> list[str]:
    """PipeDream's list within each stage's room: no stage can be farther ahead than one before it."""
    warm = min(M, S - 1 - stage, min(room[: stage + 1]) - 1)
    rows = [f"F{m}" for m in range(warm)]
    for m in range(M):
        rows += [f"F{warm + m}"] * (warm + m < M) + [f"B{m}", f"U{m}"]
    return rows


def before(row: list[str], kind: str) -> list[int]:
    """For each micro-batch, how many updates stand before its F, or B."""
    counts = [0, *accumulate(word[0] == "U" for word in row)]
    found = {int(word[1:]): n for word, n in zip(row, counts) if word[0] == kind}
    return [int(found[m]) for m in sorted(found)]


def holding(row: list[str], used: list[int], ahead: bool = True) -> list[int]:
    """How many versions a stage holds after each of its actions, where micro-batch m uses version used[m].

    ahead: WRONG if False, forwards to come are not thought of.
    """
    counts = []
    now = 0
    gone = set()
    begun = set() if not ahead else set(range(len(used)))
    for word in row:
        now += word[0] == "U"
        {"F": begun, "B": gone, "U": set()}[word[0]].add(int(word[1:]))
        counts.append(len({now} | {used[m] for m in begun - gone if used[m] <= now}))
    return counts


def late_weights(
    run: Callable,
    weights: list[list[Tensor]],
    xs: list[Tensor],
    ys: list[Tensor],
    loss_fn,
    met: Sequence[Sequence[int]],
    rate: float,
    group: int = 1,
    mean: bool = True,
    only_last: bool = False,
    onto_used: bool = False,
    adds_up: bool = False,
) -> list[list[Tensor]]:
    """The last version of each stage's weights. run(weights of a stage, x): what the stage makes of x.

    met[s][m]: the version of stage s that micro-batch m meets.  group: how many micro-batches share an update.
    WRONG: mean=False, the sum; only_last, the last gradient of a group; onto_used, added to the weights that made it;
    adds_up, with the gradients of all groups before.
    """
    made, total = [[[w.clone() for w in own]] for own in weights], None
    for m, (x, y) in enumerate(zip(xs, ys)):
        used = [
            [w.clone().requires_grad_() for w in made[s][version[m]]]
            for s, version in enumerate(met)
        ]
        for own in used:
            x = run(own, x)
        grads = torch.autograd.grad(loss_fn(x, y), [w for own in used for w in own])
        fresh = total is None or only_last
        total = grads if fresh else [g + before for g, before in zip(grads, total)]
        if (m + 1) % group and m + 1 < len(xs):
            continue
        size = 1 if only_last or not mean else m % group + 1
        grads = iter(total)
        for versions, own in zip(made, used):
            start = own if onto_used else versions[-1]
            versions.append([w.detach() - rate / size * next(grads) for w in start])
        total = total if adds_up else None
    return [versions[-1] for versions in made]


def buffered(weight: Tensor, grad: Callable, xs: list[Tensor], rate: float, m: int) -> Tensor:
    """What PipeDream-2BW ends with: group g's mean gradient, at version max(0, g − 1), added to version g."""
    older = newer = weight
    for g in range(0, len(xs), m):
        mean = sum(grad(older, x) for x in xs[g : g + m]) / m
        older, newer = newer, newer - rate * mean
    return newer
