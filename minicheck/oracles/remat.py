"""What an answer must not call: segments and backwards of a chain, by another way than the library's.

Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor

FORBIDDEN = (
    "minidist.collectives",
    "minidist.parallel",
    "minidist.train",
    "minidist.study",
    "torch.utils.checkpoint",
    "minicheck.oracles.remat",
)


def peak_of(lengths: Sequence[int], memories: Sequence[int], edge: int) -> list[int]:
    """Bytes alive in backward, for each segment: an input of each one before it, and its own layers'."""
    seen = []
    for before, length in enumerate(lengths):
        first = sum(lengths[:before])
        seen.append(before * edge + sum(memories[first : first + length]))
    return seen


def fewest(memories: Sequence[int], edge: int, budget: int) -> int | None:
    """How many segments are needed at least within the budget; None if none will do.

    ends: where k segments can end that begin with the first layer.
    """
    before = [0, *accumulate(memories)]
    layers = len(memories)
    ends = {0}
    for k in range(layers):
        room = budget - k * edge
        found = set()
        for first in ends:
            for end in range(first + 1, layers + 1):
                if before[end] - before[first] <= room:
                    found.add(end)
        ends = found
        if layers in ends:
            return k + 1
    return None


def rerun(blocks: Sequence[Callable], inputs: Sequence[tuple[Tensor, ...]], dy: Tensor) -> None:
    """Backward through blocks of which only inputs are there, the last one first; adds to .grad.

    inputs: of each block what goes on from block to block, whole numbers, and a tensor that all of them share.
    """
    total = torch.zeros_like(inputs[0][2])
    for block, (x, order, shared) in zip(reversed(blocks), reversed(inputs)):
        again, other = x.detach().requires_grad_(), shared.detach().requires_grad_()
        block(again, order, other).backward(dy)
        dy, total = again.grad, total + other.grad
    if inputs[0][0].requires_grad:
        inputs[0][0].grad = dy
    if inputs[0][2].requires_grad:
        inputs[0][2].backward(total)
