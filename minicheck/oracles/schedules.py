"""What an answer must not call: lists with v chunks and with held-back W's, who hangs, and gradients by PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.parallel.schedules import Action, Shape, parse


def in_groups(stage: int, S: int, groups: list[int], v: int, ahead: int) -> list[str]:
    """A stage's interleaved list: each group of micro-batches through one chunk after the other."""
    forwards, backwards = [], []
    first = 0
    for size in groups:
        for chunk in range(v):
            for micro in range(first, first + size):
                forwards.append(str(Action("F", micro, chunk)))
                backwards.append(str(Action("B", micro, v - 1 - chunk)))
        first += size
    warm = warm_up(stage, S, groups, v, ahead)
    words = forwards[:warm]
    for forward, backward in zip(forwards[warm:], backwards):
        words += [forward, backward]
    return words + backwards[len(forwards) - warm :]


def warm_up(stage: int, S: int, groups: list[int], v: int, ahead: int) -> int:
    """The forwards before one forward and one backward take turns."""
    return min(v * sum(groups), ahead * (S - 1 - stage) + (v - 1) * max(groups))


def held_back(stage: int, S: int, M: int, late: int) -> list[str]:
    """1F1B with a backward in two halves, `late` W's held back."""
    warm = min(M, S - 1 - stage)
    words = [f"F{m}" for m in range(warm)]
    for m in range(M):
        words += [f"F{warm + m}"] * (warm + m < M) + [f"I{m}"]
        words += [f"W{m - late}"] * (m >= late)
    return words + [f"W{m}" for m in range(max(0, M - late), M)]


def hanging(
    lists: list[list[str]], v: int
) -> tuple[dict[int, str], dict[int, int], list[list[tuple[int, str]]]]:
    """Who hangs: the first word that each stage never starts, the stage that each of these waits for (itself, if nobody
    ever does what it waits for), and all right answers: stages alone, and circles, each from its lowest stage on.
    """
    rows = [parse(" ".join(words)) for words in lists]
    shape = Shape(len(lists), 1, v)
    there = set()
    position = [0] * len(rows)
    moved = True
    while moved:
        moved = False
        for s, row in enumerate(rows):
            while position[s] < len(row) and there.issuperset(shape.needs(s, row[position[s]])):
                there.add(shape.gives(s, row[position[s]]))
                position[s] += 1
                moved = True
    stuck = {s: row[position[s]] for s, row in enumerate(rows) if position[s] < len(row)}
    waits = {}
    for s, action in stuck.items():
        missing = next(item for item in shape.needs(s, action) if item not in there)
        other = shape.stage(missing.part)
        left = rows[other][position[other] :]
        comes = other != s and missing in [shape.gives(other, later) for later in left]
        waits[s] = other if comes else s
    answers = []
    for first in stuck:
        path = [first]
        while waits[path[-1]] != first and len(path) <= len(lists):
            path.append(waits[path[-1]])
        if waits[path[-1]] == first and first == min(path):
            answers.append([(s, str(stuck[s])) for s in path])
    return {s: str(action) for s, action in stuck.items()}, waits, answers


def mlp_gradients(x: Tensor, w1: Tensor, w2: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of x, w1 and w2, where y = relu(x·w1)·w2 and dy is y's."""
    leaves = [t.clone().requires_grad_() for t in (x, w1, w2)]
    y = (leaves[0] @ leaves[1]).relu() @ leaves[2]
    return torch.autograd.grad(y, leaves, dy)
