"""Naive, GPipe and 1F1B: three orders of the same work, with a flush (all gradients are in) at the end.

    naive  one micro-batch at a time through all stages and back: one stage is busy, the others wait
    GPipe  all forwards, then all backwards: bubble (S−1)/(M+S−1) of the time, all M activations are kept
    1F1B   as soon as a backward can run it does: the same bubble, at most S − stage activations are kept

    GPipe   0  F0 F1 F2 .  .  B0 B1 B2       1F1B   0  F0 F1 .  B0 F2 B1 .  B2      S = 2, M = 3
            1  .  F0 F1 F2 B0 B1 B2 .               1  .  F0 B0 F1 B1 F2 B2 .       ──▶ time

Every list runs the backwards in the order of the micro-batches, so that gradients add up as in a serial loop.
Sources: Huang et al. 2019, "GPipe", section 2.3; Narayanan et al. 2021, "Efficient Large-Scale Language Model
Training on GPU Clusters", section 2.2.1 ("PipeDream-Flush").
"""

from __future__ import annotations

from .action import Action, check


def naive(stage: int, S: int, M: int) -> list[Action]:
    """`F0 B0 F1 B1 …` on every stage. Bubble (S−1)/S, one activation kept."""
    check(stage, S, M)
    return [Action(kind, m) for m in range(M) for kind in "FB"]


def gpipe(stage: int, S: int, M: int) -> list[Action]:
    """All forwards, then all backwards. Bubble (S−1)/(M+S−1), M activations kept."""
    check(stage, S, M)
    return [Action(kind, m) for kind in "FB" for m in range(M)]


def one_f_one_b(stage: int, S: int, M: int) -> list[Action]:
    """S − 1 − stage forwards to warm up, then one forward, one backward in turn, then the backwards that are left.

    Bubble (S−1)/(M+S−1), min(M, S − stage) activations kept.
    """
    check(stage, S, M)
    warm = min(M, S - 1 - stage)
    begin = [Action("F", m) for m in range(warm)]
    steady = [Action(kind, m) for i in range(M - warm) for kind, m in (("F", warm + i), ("B", i))]
    return begin + steady + [Action("B", m) for m in range(M - warm, M)]
