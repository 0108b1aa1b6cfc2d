"""Experts on one rank: what the answers must give, from all ranks' tokens at once."""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.split import bounds, uneven

FORBIDDEN = (
    "minidist.parallel.experts",
    "minidist.parallel",
    "minidist.models",
    "minidist.train",
    "minicheck.oracles.experts",
)


def seated(choices: Tensor, gates: Tensor, experts: int, seats: int) -> Tensor:
    """Which choices (T, k) find a seat: the largest gates first, of equal ones the first token, and its best choice."""
    taken = [0] * experts
    found = torch.zeros_like(choices, dtype=torch.bool)
    T, k = choices.shape
    order = [(-float(gates[t, j]), t, j) for t in range(T) for j in range(k)]
    for _, t, j in sorted(order):
        expert = int(choices[t, j])
        found[t, j] = taken[expert] < seats
        taken[expert] += 1
    return found


def chosen(choices: Tensor, experts: int, n: int, held: list[int] | None = None) -> Tensor:
    """(n, T): which tokens chose an expert of each rank. held: how many experts each has, if not as it should be."""
    parts = bounds(held or uneven(experts, n))
    return torch.stack([((choices >= a) & (choices < b)).any(1) for a, b in parts])


def received(
    args: list[tuple],
    rank: int,
    senders: list[int] | None = None,
    held: list[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens of all senders for a rank, the gates of its experts for each, and how many come from each sender."""
    n, experts = len(args), args[0][3]
    first, end = bounds(held or uneven(experts, n))[rank]
    rows, weights = [], []
    for r in range(n) if senders is None else senders:
        tokens, choices, gates, _ = args[r]
        here = chosen(choices, experts, n, held)[rank]
        gate = [(gates * (choices == e)).sum(1) for e in range(first, end)]
        rows.append(tokens[here])
        weights.append(torch.stack(gate, 1)[here])
    return torch.cat(rows), torch.cat(weights), torch.tensor([len(x) for x in rows])


def bytes_out(args: list[tuple]) -> int:
    """Bytes of tokens and weights that all ranks together send to others."""
    n, (tokens, _, _, experts) = len(args), args[0]
    total = 0
    for r, (_, choices, _, _) in enumerate(args):
        for owner, own in enumerate(uneven(experts, n)):
            if owner != r:
                count = int(chosen(choices, experts, n)[owner].sum())
                total += count * (tokens.shape[1] + own) * tokens.element_size()
    return total


def rows_home(args: list[tuple], rank: int) -> list[Tensor]:
    """What each rank sends back to this one."""
    return [results.split(come.tolist())[rank] for results, come, _, _ in args]


def home(args: list[tuple], rank: int) -> Tensor:
    """Each of a rank's tokens: the sum of its rows from all ranks."""
    _, _, choices, experts = args[rank]
    out = args[rank][0].new_zeros(len(choices), args[rank][0].shape[1])
    for here, back in zip(chosen(choices, experts, len(args)), rows_home(args, rank), strict=True):
        out[here] += back
    return out


def averaged(grads: list[tuple], ep: int, rank: int) -> tuple[Tensor, Tensor, float]:
    """A rank's gradients of the mean of all losses, of its experts and of the rest, and the norm of the whole model's."""
    n = len(grads)
    experts = [sum(expert.double() for expert, _ in grads[e::ep]) / n for e in range(ep)]
    rest = sum(rest.double() for _, rest in grads) / n
    squares = sum(x.square().sum() for x in experts) + rest.square().sum()
    dtype = grads[0][0].dtype
    return experts[rank % ep].to(dtype), rest.to(dtype), float(squares.sqrt())
