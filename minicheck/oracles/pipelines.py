"""What an answer must not call: right lists, the times of lists, and gradients by PyTorch's own backward."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor, nn

from minidist.parallel.schedules import parse
from minidist.parallel.simulate import simulate


def words(kind: str, stage: int, S: int, M: int) -> list[str]:
    """A stage's list."""
    steady = min(M, S - 1 - stage)
    warm = {
        "naive": 0,
        "gpipe": M,
        "1f1b": steady,
        "ahead": steady if stage else M,
    }[kind]
    first = [f"F{m}" for m in range(warm)]
    steady = [word for i in range(M - warm) for word in (f"F{warm + i}", f"B{i}")]
    return first + steady + [f"B{m}" for m in range(M - warm, M)]


def any_order(S: int, M: int, rng: torch.Generator) -> list[list[str]]:
    """Lists that come to their end: again and again one of the actions that can be done, drawn at random."""
    left, lists = (
        set(product("FB", range(M), range(S))),
        [[] for _ in range(S)],
    )
    while left:
        ready = [
            (kind, m, s)
            for kind, m, s in sorted(left)
            if not left & ({("F", m, s - 1)} if kind == "F" else {("F", m, s), ("B", m, s + 1)})
        ]
        kind, m, s = ready[int(torch.randint(len(ready), (), generator=rng))]
        left.remove((kind, m, s))
        lists[s].append(f"{kind}{m}")
    return lists


def time_of(lists: list[list[str]], forward: list[float], backward: list[float]) -> float | None:
    """Seconds of a step; None if the lists hang."""
    try:
        rows = [parse(" ".join(words)) for words in lists]
        return simulate(rows, forward, backward).time
    except ValueError:
        return None


def whole_gradient(
    parts: list[nn.Module], xs: list[Tensor], ys: list[Tensor], loss_fn
) -> list[list[Tensor]]:
    """Of the mean loss over the micro-batches, for the parameters of each part."""
    for x, y in zip(xs, ys):
        (loss_fn(nn.Sequential(*parts)(x), y) / len(xs)).backward()
    return [[p.grad for p in part.parameters()] for part in parts]
