"""What an answer must not call: lists with updates, and the weights that PipeDream ends with, by a loop on one rank.

Stage s is `late[s]` updates behind: micro-batch m meets its version max(0, m − late[s]).
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

    "last in": all forwards, then the backwards in the other order.
    """
    given = words("gpipe" if kind == "last in" else kind, stage, S, M)
    rows, done = [], 0
    for word in given if kind != "last in" else given[:M] + given[: M - 1 : -1]:
        rows.append(word)
        if word[0] == "B":
            done += 1
            rows += [f"U{word[1:]}"] if done % every == 0 or done == M else []
    return rows


def delayed(row: list[str]) -> list[str]:
    """The same list, in which each update comes a forward later, if one comes before the next backward."""
    row = list(row)
    for i in range(len(row) - 1):
        if row[i][0] == "U" and row[i + 1][0] == "F":
            row[i], row[i + 1] = row[i + 1], row[i]
    return row


def before(row: list[str], kind: str) -> list[int]:
    """For each micro-batch, how many updates stand before its F, or B."""
    counts = [0, *accumulate(word[0] == "U" for word in row)]
    found = {int(word[1:]): n for word, n in zip(row, counts) if word[0] == kind}
    return [int(found[m]) for m in sorted(found)]


def late_weights(
    run: Callable,
    weights: list[list[Tensor]],
    xs: list[Tensor],
    ys: list[Tensor],
    loss_fn,
    late: Sequence[int],
    rate: float,
    onto_used: bool = False,
    adds_up: bool = False,
) -> list[list[Tensor]]:
    """The last version of each stage's weights. run(weights of a stage, x): what the stage makes of x.

    onto_used: WRONG, a gradient is added to the weights that made it, not to the newest.
    adds_up: WRONG, an update has the gradients of all micro-batches before, too.
    """
    made, total = [[[w.clone() for w in own]] for own in weights], 0
    for m, (x, y) in enumerate(zip(xs, ys)):
        used = [
            [w.clone().requires_grad_() for w in made[s][max(0, m - behind)]]
            for s, behind in enumerate(late)
        ]
        for own in used:
            x = run(own, x)
        grads = torch.autograd.grad(loss_fn(x, y), [w for own in used for w in own])
        total = [g + before for g, before in zip(grads, total)] if adds_up and m else grads
        grads = iter(total)
        for versions, own in zip(made, used):
            start = own if onto_used else versions[-1]
            versions.append([w.detach() - rate * next(grads) for w in start])
    return [versions[-1] for versions in made]


def buffered(weight: Tensor, grad: Callable, xs: list[Tensor], rate: float, m: int) -> Tensor:
    """What PipeDream-2BW ends with: group g's mean gradient, at version max(0, g − 1), added to version g."""
    older = newer = weight
    for g in range(0, len(xs), m):
        mean = sum(grad(older, x) for x in xs[g : g + m]) / m
        older, newer = newer, newer - rate * mean
    return newer
