"""What an answer must not call: segments, plans and backwards of a chain, by another way than the library's.

Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

FORBIDDEN = (
    "minidist.collectives",
    "minidist.parallel",
    "minidist.train",
    "minidist.parallel.accumulate",
    "minidist.study",
    "torch.utils.checkpoint",
    "minicheck.oracles.remat",
)


def peak_of(lengths: Sequence[int]) -> int:
    """The most activations alive in backward: an input of each segment before one, and all of its own."""
    return max(before + length for before, length in enumerate(lengths))


def fewest(layers: int, budget: int) -> int | None:
    """How many segments are needed at least within the budget; None if none will do."""
    room = 0
    for k in range(1, budget + 1):
        room += budget - k + 1
        if room >= layers:
            return k
    return None


def alive(memories: Sequence[int], kept: Sequence[bool]) -> list[int]:
    """Bytes at the backward of each layer: of the kept ones before it, and its own."""
    held, seen = 0, []
    for nbytes, keep in zip(memories, kept):
        seen.append(held + nbytes)
        held += nbytes * keep
    return seen


def least(costs: Sequence[int], memories: Sequence[int], budget: int) -> int | None:
    """The least cost that is repeated within the budget; None if nothing fits.

    From the last layer to the first: table[h] is the least cost of the layers from here on where h bytes are held.
    """
    table: list[int | None] = [0] * (budget + 1)
    for cost, nbytes in reversed([*zip(costs, memories)]):
        before: list[int | None] = [None] * (budget + 1)
        for held in range(budget - nbytes + 1):
            again, kept = table[held], table[held + nbytes]
            found = [
                value
                for value in (kept, None if again is None else again + cost)
                if value is not None
            ]
            before[held] = min(found, default=None)
        table = before
    return table[0]


def rerun(blocks: Sequence[Callable], inputs: Sequence[Tensor], dy: Tensor) -> None:
    """Backward through blocks of which only inputs are there, the last one first; adds to .grad."""
    for block, x in zip(reversed(blocks), reversed(inputs)):
        again = x.detach().requires_grad_()
        block(again).backward(dy)
        dy = again.grad
    if x.requires_grad:
        x.grad = dy
