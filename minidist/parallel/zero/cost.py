"""What stages 1 and 2 of ZeRO keep and send, before any run: nothing here is taken from one.

Ψ parameters on n ranks, of which a rank owns Ψ/n. With Adam, 16-bit parameters and gradients and fp32 masters:

    stage    a rank keeps, bytes                   all ranks send in a step, numbers
    0        2Ψ + 2Ψ   + 12Ψ     = 16Ψ             all-reduce 2(n−1)Ψ
    1        2Ψ + 2Ψ   + 12Ψ/n   = 4Ψ + 12Ψ/n      reduce-scatter (n−1)Ψ, all-gather (n−1)Ψ: the same
    2        2Ψ + 2Ψ/n + 12Ψ/n   = 2Ψ + 14Ψ/n      the same

Without masters, all in fp32: 16Ψ, 8Ψ + 8Ψ/n, 4Ψ + 12Ψ/n. A rank sends (n−1)/n of what an even share would be: 2Ψ(n−1)/n
numbers. Whoever owns what, every number is sent to all but one of the ranks. ShardedOptimizer also says which gradients
there are, with a number for each tensor. Stage 3: `fully.formulas`. Source: Rajbhandari et al. 2020, "ZeRO", sections
3.1, 5.1, 5.2 and 7.2.
"""

from __future__ import annotations


def kept(
    params: int, owned: int, stage: int, low: int = 2, wide: int = 4, moments: int = 2
) -> dict[str, int]:
    """Bytes by category on a rank that owns `owned` of `params` parameters, when backward has ended.

    low: bytes of a parameter and of its gradient.  wide: of its master, if that is another dtype, and of each moment.
    moments: numbers a parameter that the optimizer remembers.  ValueError for a stage that is not 1 or 2.
    """
    if stage not in (1, 2):
        raise ValueError(f"these are the stages 1 and 2 of ZeRO, not {stage}")
    states = wide * (moments + (wide != low))
    return {
        "parameters": low * params,
        "gradients": low * (params if stage == 1 else owned),
        "optimizer states": states * owned,
    }


def step_bytes(params: int, tensors: int, n: int, itemsize: int) -> int:
    """Of stages 1 and 2, all ranks together: `params` numbers of `itemsize` bytes in `tensors` that have an owner.

    Every backward that is reduced at stage 2 costs the gradients' part again.
    """
    return (n - 1) * (2 * params + tensors) * itemsize
