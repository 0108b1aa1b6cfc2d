"""Which layers a stage gets: the slowest stage sets the pace, so the largest part should be as small as can be.

    costs        1 1 1 4 1 1 1        S = 3: | 1 1 1 | 4 | 1 1 1 |  the largest is 4; by count it would be 6

Parts are contiguous, so a partition is S − 1 cuts. best(s, j), the smallest largest part of the first j layers in s
parts, is the minimum over i < j of max(best(s − 1, i), cost of layers i … j − 1): O(S·L²) steps for L layers.
Source: Narayanan et al. 2019, "PipeDream", section 3.1 (its dynamic program, for one machine a stage).

What a layer costs: one (`by_count`), its parameters (`by_parameters`: what optimizer states weigh), or the time of
its forward and backward, measured (`by_time`: what balances the work).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from ...train.remat import Replay, restoring
from .batches import several


def partition(costs: Sequence[float], S: int) -> list[tuple[int, int]]:
    """(first, end) of the layers of each of S stages: contiguous, none empty, the largest sum as small as can be.

    Of equally good ones that whose last parts are the largest they can be: the first stages keep the most activations.
    Raises ValueError for fewer layers than stages, and for a negative cost.
    """
    L = len(costs)
    if S < 1 or L < S:
        raise ValueError(f"{L} layers do not make {S} stages of at least one each")
    if min(costs) < 0:
        raise ValueError(f"a layer costs at least 0, not {min(costs)}")
    total = [0, *accumulate(costs)]
    best, cuts = [total], []  # best[s][j]: of the first j layers in s + 1 parts
    for s in range(1, S):
        row, cut = [float("inf")] * (L + 1), [0] * (L + 1)
        for j in range(s + 1, L + 1):
            row[j], cut[j] = min((max(best[-1][i], total[j] - total[i]), i) for i in range(s, j))
        best.append(row)
        cuts.append(cut)
    ends = [L]
    for cut in reversed(cuts):
        ends.append(cut[ends[-1]])
    return list(zip([0, *ends[:0:-1]], reversed(ends), strict=True))


def by_count(model: nn.Sequential) -> list[int]:
    """Every layer costs 1."""
    return [1] * len(model)


def by_parameters(model: nn.Sequential) -> list[int]:
    """A layer costs the number of its parameters; one that is tied counts wherever it is used."""
    return [sum(p.numel() for p in layer.parameters()) for layer in model]


def by_time(model: nn.Sequential, x: Tensor | tuple[Tensor, ...], repeats: int = 5) -> list[float]:
    """A layer costs the seconds of its forward and backward on a micro-batch x: median of `repeats`, after one more.

    Gradients, buffers and random numbers are left as they were.
    """
    surroundings, rows = Replay(several(x)), []
    for _ in range(repeats + 1):
        with surroundings.again(), restoring():
            rows.append(_times(model, several(x)))
    return [statistics.median(column) for column in zip(*rows[1:], strict=True)]


def _times(model: nn.Sequential, x: tuple[Tensor, ...]) -> list[float]:
    """Seconds of each layer, once."""
    found = []
    for layer in model:
        x = tuple(one.detach().requires_grad_(one.is_floating_point()) for one in x)
        start = _now(x)
        out = several(layer(*x))
        ends = [y for y in out if y.requires_grad]
        leaves = [leaf for leaf in (*x, *layer.parameters()) if leaf.requires_grad]
        if ends:
            torch.autograd.grad(ends, leaves, [torch.ones_like(y) for y in ends], allow_unused=True)
        found.append(_now(out) - start)
        x = out
    return found


def _now(tensors: Sequence[Tensor]) -> float:
    """Seconds, when all that was started is done."""
    if any(x.is_cuda for x in tensors):
        torch.cuda.synchronize()
    return time.perf_counter()
