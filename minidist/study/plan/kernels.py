"""What a layer does beside its products: bytes that are read and written, counted in passes over its data.

    whole    passes over (B, T, H): norms, dropout, residual sums; every tensor-parallel rank makes them all, unless the
             sequence is split
    inner    passes over (B, T, H/t): GELU (4 for each pass over its 4H columns), biases, copies of heads
    scores   passes over (B, a/t, T, T), beside the two products that write and read them; 0 where attention is fused

Counted from the code of the two: a norm reads x and writes y (2), its backward reads two and writes one (3); a mask
of dropout is one byte an element, half a pass in 16 bits; an all-reduce that must not change its input copies it (2).
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Passes:
    """Of one direction. launches: operators that are not products."""

    whole: float
    inner: float
    scores: float
    launches: int


@dataclass(frozen=True)
class Kernels:
    """A training program, as far as it decides how long a step takes.

    explicit: scores are written to memory.  logits: passes over (B, T, V/t) of the loss, forward and backward, in the
    model's own bytes, and its operators.  combine: bytes moved to sum one byte of a collective.  scattered: stages
    send an activation once, a part from each tensor-parallel rank.  overlap: gradients are reduced beside the last
    backward.  blocking: a stage waits for its messages.  reduced_whole: ZeRO's gradients are all-reduced.  messages:
    copies of its own that a stage keeps for each micro-batch under way.  launch: seconds of an operator's start; None:
    the device's.  adam: passes over the numbers that the optimizer steps.  scaling: passes over the gradients before.
    """

    name: str
    forward: Passes
    backward: Passes
    explicit: bool
    logits: tuple[float, float, int]
    combine: float = 0.0
    scattered: bool = True
    overlap: bool = False
    blocking: bool = True
    reduced_whole: bool = False
    messages: int = 0
    launch: float | None = None
    adam: float = 7
    scaling: float = 2
    early_stop: bool = False


MEGATRON = Kernels(
    "Megatron-LM, 2021",
    Passes(whole=2 * (2 + 3.5), inner=2 * 4 + 2, scores=2 + 2.5, launches=7),
    Passes(whole=2 * (3 + 3.5 + 3), inner=3 * 4 + 4 + 6 + 3 + 2, scores=2.5 + 3, launches=14),
    explicit=True,
    logits=(12, 4, 20),
)
"""Bias and GELU in one operator, bias, dropout and residual sum in one, scale, mask and softmax in one; dropout of the
scores by itself. Narayanan et al. 2021, section 4.2."""

DEEPSPEED = replace(
    MEGATRON,
    name="Megatron-DeepSpeed, 2022",
    scattered=False,
    reduced_whole=True,
    messages=2,
    launch=100e-6,
)
"""The same layers; every tensor-parallel rank sends its copy of an activation to the next stage, and keeps it. BLOOM
ran with CUDA_LAUNCH_BLOCKING=1 (tr11-176B-ml.slurm: "do not remove"), so no operator was launched ahead. Assumption:
then each takes the host 0.1 ms, from Python to the end of its launch."""

FUSED = Kernels(
    "fused attention",
    Passes(whole=2 * (2 + 3), inner=2 * 4, scores=0, launches=5),
    Passes(whole=2 * (3 + 1 + 3), inner=3 * 4 + 4 + 6 + 3, scores=0, launches=11),
    explicit=False,
    logits=(6, 3, 10),
    overlap=True,
    blocking=False,
)
"""As one would train today: no dropout, FlashAttention, gradients reduced beside the last backward."""

EAGER = Kernels(
    "minidist's layers, operator by operator",
    Passes(whole=2 * (2 + 2 + 2 + 3), inner=2 * 4, scores=0, launches=9),
    Passes(whole=2 * (3 + 1 + 2 + 3), inner=3 * 4 + 4 + 6 + 6 + 3, scores=0, launches=13),
    explicit=False,
    logits=(10, 18, 60),
    combine=3.0,
    scattered=False,
    blocking=False,
    adam=21,
    early_stop=True,
)
"""`parallelize` without dropout, as a World charges it. Without ZeRO gradients are reduced beside the last backward.
With one stage that hides them: then overlap=True. With several it hid nothing in a World (dp 2, pp 2, tp 2: 12.0 ms a
step, 11.8 where they were reduced at the end)."""
