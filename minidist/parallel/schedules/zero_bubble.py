"""Zero bubble by hand: the backward in two, and the half that nobody waits for fills the bubble.

The stage before waits for the input's gradient (I) only; the weights' gradient (W) may come at any time. So W's are
held back, `stage` of them for H1 and twice as many for H2, and fill the time in which a stage would wait at the end.

    h1   1F1B's order, its memory (S micro-batches, on every stage), bubble (S−1)(T_F + T_I − T_W)
    h2   twice the forwards to warm up, 2S − 1 micro-batches kept, bubble (S−1)(T_F + T_I − 2·T_W): none if all are
         equal, where each stage begins its next step as soon as it is done, without waiting for the others

    h1, S = 3    0  F0 F1 F2 .  .  I0 W0 F3 …                 time of a step without a bubble: M(T_F + T_I + T_W)
    M = 4        1  .  F0 F1 .  I0 F2 I1 W0 F3 …
                 2  .  .  F0 I0 F1 I1 F2 I2 W0 F3 …           (the paper calls our I "B")

Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 2, figure 3, table 1.
"""

from __future__ import annotations

from .action import Action, check


def zb_h1(stage: int, S: int, M: int) -> list[Action]:
    """1F1B with a split backward; `stage` W's are held back. Keeps min(M, S) micro-batches on every stage."""
    return zero_bubble(stage, S, M, ahead=1)


def zb_h2(stage: int, S: int, M: int) -> list[Action]:
    """Two forwards to warm up where 1F1B has one; 2·stage W's are held back. Keeps min(M, 2S − 1) micro-batches."""
    return zero_bubble(stage, S, M, ahead=2)


def zero_bubble(stage: int, S: int, M: int, ahead: int = 1) -> list[Action]:
    """The hand-written family: ahead·(S−1−stage) forwards to warm up, then F, I and the W of ahead·stage before.

    Keeps min(M, ahead·(S−1) + 1) micro-batches on every stage, until their W. ahead = 1 is ZB-H1, 2 is ZB-H2.
    """
    check(stage, S, M)
    if ahead < 1:
        raise ValueError(
            f"the first stage is at least 1 forward ahead for every stage after it, not {ahead}"
        )
    warm, late = min(M, ahead * (S - 1 - stage)), ahead * stage
    actions = [Action("F", m) for m in range(warm)]
    for i in range(M):
        actions += [Action("F", warm + i)] * (warm + i < M) + [Action("I", i)]
        actions += [Action("W", i - late)] * (i >= late)
    return actions + [Action("W", m) for m in range(max(0, M - late), M)]
