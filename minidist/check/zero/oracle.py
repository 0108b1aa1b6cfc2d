"""What the exercises of lesson 10 are held against: serial steps, and the fullest rank of the rule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from .work import Adam


def greedy(sizes: Sequence[int], n: int, order: Iterable[int]) -> list[int]:
    """Each, in this order, to the rank with the fewest bytes so far."""
    loads, owner = [0] * n, [0] * len(sizes)
    for i in order:
        owner[i] = min(range(n), key=loads.__getitem__)
        loads[owner[i]] += sizes[i]
    return owner


def fullest(sizes: Sequence[int], n: int) -> int:
    """Bytes of the rank that owns the most, largest first."""
    owner = greedy(sizes, n, sorted(range(len(sizes)), key=lambda i: -sizes[i]))
    return max(sum(b for b, o in zip(sizes, owner, strict=True) if o == r) for r in range(n))


def stepped(values: list[Tensor], grads: list[list[Tensor]], steps: int) -> list[Tensor]:
    """The values after so many serial steps; grads[k]: of step k."""
    params = [v.clone().requires_grad_() for v in values]
    optimizer = Adam(params)
    for k in range(steps):
        for p, g in zip(params, grads[k], strict=True):
            p.grad = g.clone()
        optimizer.step()
    return [p.detach() for p in params]


def norm(grads: Iterable[Tensor]) -> float:
    """The norm of all these together."""
    return float(sum((g.double() ** 2).sum() for g in grads)) ** 0.5
