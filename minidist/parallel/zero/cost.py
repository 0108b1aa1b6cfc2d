"""What a step of ZeRO sends, as formulas: bytes of all ranks together, by rings.

    stage      gradients               parameters                        a rank, evenly shared
    1, 2       reduce-scatter (n−1)Ψ   all-gather (n−1)Ψ                 2Ψ(n−1)/n, as data parallelism
    3          reduce-scatter (n−1)Ψ   all-gather, twice, 2(n−1)Ψ        3Ψ(n−1)/n

Whoever owns what: every number is sent to all but one of the ranks. ShardedOptimizer also says which gradients there
are, with a number for each tensor. Source: Rajbhandari et al. 2020, "ZeRO", sections 7.2 and 7.3.
"""

from __future__ import annotations


def step_bytes(params: int, tensors: int, n: int, itemsize: int) -> int:
    """Of stages 1 and 2: `params` numbers of `itemsize` bytes in `tensors` that have an owner, over n ranks.

    Every backward that is reduced at stage 2 costs the gradients' part again.
    """
    return (n - 1) * (2 * params + tensors) * itemsize
