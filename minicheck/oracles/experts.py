"""Experts on one rank: what the answers must give, from all ranks' rows at once."""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.split import bounds, uneven

FORBIDDEN = (
    "minidist.parallel.experts",
    "minidist.parallel",
    "minidist.models",
    "minicheck.oracles.experts",
)


def seated(choices: Tensor, experts: int, seats: int, by_choice: bool = False) -> Tensor:
    """Which choices (T, k) find a seat. by_choice: all first choices before the second ones."""
    taken = [0] * experts
    found = torch.zeros_like(choices, dtype=torch.bool)
    T, k = choices.shape
    order = [(t, j) for t in range(T) for j in range(k)]
    if by_choice:
        order.sort(key=lambda place: place[1])
    for t, j in order:
        expert = int(choices[t, j])
        found[t, j] = taken[expert] < seats
        taken[expert] += 1
    return found


def first_end(experts: int, n: int) -> list[tuple[int, int]]:
    """Each rank's experts."""
    return bounds(uneven(experts, n))


def received(rows: list[Tensor], expert: list[Tensor], experts: int, rank: int) -> Tensor:
    """The rows of a rank's experts, one expert after the other, each by rank."""
    first, end = first_end(experts, len(rows))[rank]
    chosen = [x[e == i] for i in range(first, end) for x, e in zip(rows, expert)]
    return torch.cat(chosen)


def by_rank(rows: list[Tensor], expert: list[Tensor], experts: int, rank: int) -> Tensor:
    """The same as they come: by rank, each in the order of its experts."""
    first, end = first_end(experts, len(rows))[rank]
    chosen = [x[e == i] for x, e in zip(rows, expert) for i in range(first, end)]
    return torch.cat(chosen)


def table(expert: list[Tensor], experts: int, rank: int) -> Tensor:
    """(n, own): how many rows of each rank are for each of this rank's experts."""
    first, end = first_end(experts, len(expert))[rank]
    return torch.stack([e.bincount(minlength=experts)[first:end] for e in expert])


def away(expert: list[Tensor], experts: int) -> list[int]:
    """Rows that each rank sends to others."""
    n = len(expert)
    return [len(expert[r]) - int(table(expert, experts, r)[r].sum()) for r in range(n)]
