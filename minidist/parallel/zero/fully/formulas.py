"""What stage 3 costs, before any run: nothing here is taken from one.

Ψ parameters on n ranks, k of them in the largest block. Kept between steps on the rank that holds the most, with Adam
and 16-bit compute over fp32 shards: (4 + 4 + 8)·⌈Ψ/n⌉ = 16Ψ/n bytes: a shard, its gradient, two moments. ZeRO counts
2 + 2 + 12 for a 16-bit shard and gradient beside an fp32 copy among the states; the sum is the same, and here the cast
happens as a block is gathered. Without masters (all in s bytes): 4sΨ/n.

Traffic of a step: Ψ to gather in forward, Ψ in backward, Ψ to reduce, each times (n−1)/n: 3Ψ(n−1)/n elements sent a
rank. With r replicas of each shard, 2(r−1)/r·Ψ/n more, for the all-reduce of a shard's gradients. Sources: Rajbhandari
et al. 2020, ZeRO, sections 5.4 and 7.2.2; Zhao et al. 2023, "PyTorch FSDP", section 3.2.2.
"""

from __future__ import annotations

from fractions import Fraction


def kept(params: int, n: int, element: int = 4, moments: int = 2) -> dict[str, int]:
    """Bytes by category on rank 0, which holds the most: `{"parameters": …, "gradients": …, "optimizer states": …}`.

    One flat of `params` elements of `element` bytes; a block has at most one element more than its n-th part.
    """
    part = -(-params // n)
    return {
        "parameters": element * part,
        "gradients": element * part,
        "optimizer states": moments * element * part,
    }


def traffic(params: int, n: int, frozen: int = 0, replicas: int = 1) -> Fraction:
    """Elements that a rank sends in a step, the mean over ranks: 3Ψ(n−1)/n, and 2 for each that is frozen.

    replicas: r, of each of the n shards: 2(r−1)/r·Ψ/n more.
    """
    within = Fraction((3 * params + 2 * frozen) * (n - 1), n)
    return within + Fraction(2 * params * (replicas - 1), n * replicas)


def peak(shards: int, block: int, gradients: int, activations: int, prefetch: int = 1) -> int:
    """The most bytes that a step may take: shards, 1 + prefetch whole blocks, the whole gradients of one, or with
    prefetch of two, and activations.

    shards: of parameters, gradients and states.  block, gradients: of the largest block, in the compute dtype.
    """
    return shards + (1 + prefetch) * block + (2 if prefetch else 1) * gradients + activations
