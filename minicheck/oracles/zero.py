"""What the exercises of lesson 13 are held against: serial steps and layers, and the fullest rank of the rule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from minidist.split import uneven


def greedy(
    sizes: Sequence[int],
    n: int,
    order: Iterable[int],
    placed: Sequence[int | None] = (),
    counted: bool = True,
) -> list[int]:
    """Each new one, in this order, to the rank with the fewest bytes so far.

    placed: the rank of those that have one, None for the new.  counted: whether their bytes count.
    """
    loads, owner = [0] * n, [0] * len(sizes)
    for i, rank in enumerate(placed):
        if rank is not None:
            owner[i] = rank
            loads[rank] += sizes[i] * counted
    for i in order:
        if not placed or placed[i] is None:
            owner[i] = min(range(n), key=loads.__getitem__)
            loads[owner[i]] += sizes[i]
    return owner


def largest_first(sizes: Sequence[int]) -> list[int]:
    """The positions, from the largest to the smallest."""
    return sorted(range(len(sizes)), key=lambda i: -sizes[i])


def fullest(sizes: Sequence[int], n: int, placed: Sequence[int | None] = ()) -> int:
    """Bytes of the rank that owns the most, largest first."""
    return max(loads(sizes, greedy(sizes, n, largest_first(sizes), placed), n))


def loads(sizes: Sequence[int], owner: Sequence[int], n: int) -> list[int]:
    """Bytes that each rank owns."""
    return [sum(b for b, o in zip(sizes, owner) if o == r) for r in range(n)]


def stepped(
    adam: type, values: list[Tensor], grads: list[list[Tensor]], steps: int, rates: Sequence[float]
) -> list[Tensor]:
    """The values after so many serial steps of `adam`; grads[k]: of step k.  rates: of each value."""
    params = [v.clone().requires_grad_() for v in values]
    optimizers = [adam([p], rate) for p, rate in zip(params, rates)]
    for k in range(steps):
        for p, g, optimizer in zip(params, grads[k], optimizers):
            p.grad = g.clone()
            optimizer.step()
    return [p.detach() for p in params]


def cut(weight: Tensor, n: int) -> list[Tensor]:
    """The shards of a weight."""
    return list(weight.flatten().split(uneven(weight.numel(), n)))


def serial(weights: list[Tensor], x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The output, the gradient of x and those of the weights, of one rank with whole weights."""
    x, weights = x.clone().requires_grad_(), [w.clone().requires_grad_() for w in weights]
    y = x
    for w in weights:
        y = y @ w.T
    y.backward(dy)
    return y.detach(), x.grad, [w.grad for w in weights]


def order_hidden(grads: list[list[Tensor]]) -> bool:
    """Whether the ranks, each with its own squares first, might find the same norm bit for bit."""
    ways = [
        [total(float(square(g)) for g in some) for some in grads]
        for square in (lambda g: (g**2).sum(), lambda g: g.norm() ** 2)
        for total in (added, sum)
    ]
    return any(len({added(way[r:] + way[:r]) ** 0.5 for r in range(len(way))}) == 1 for way in ways)


def added(numbers: Iterable[float]) -> float:
    """Added one after the other, as ranks do. Python's own `sum` hides the order: from 3.12 on it carries what rounding
    has lost."""
    total = 0.0
    for number in numbers:
        total += number
    return total


def norm(grads: Iterable[Tensor]) -> float:
    """The norm of all these together."""
    return float(sum((g.double() ** 2).sum() for g in grads)) ** 0.5
