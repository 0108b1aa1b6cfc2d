"""Schedules: plain functions from a step, 0, 1, 2, …, to what the learning rate is multiplied by.

    schedule = warm_up(2_000, then=cosine(100_000, floor=0.1))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)      # step() after optimizer.step(), as ever

A function of the step has no state: to resume is to know the step, which LambdaLR's state_dict does. In units of tokens
instead of steps, which a batch that grows needs: `group["lr"] = group["initial_lr"] * schedule(tokens)`.

    warm_up        linear to 1, then another      Goyal et al. 2017, section 2.2: "gradual warmup"
    cosine         half a wave to a floor         Loshchilov and Hutter 2017, "SGDR", equation 5, without restarts

After its end a cosine stays at the floor. GPT-3: 375 M tokens of warm-up, a cosine over 260 B, floor 0.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

Schedule = Callable[[float], float]


def constant(step: float) -> float:
    """1, always.

    >>> from minidist.train.schedule import constant
    >>> constant(5)
    1.0
    """
    return 1.0


def warm_up(steps: float, then: Schedule = constant) -> Schedule:
    """Linear to 1 in so many steps, then `then`, which begins with its own step 0.

    Step t of them has (t + 1)/steps: the first one is not lost, the last has 1. 0: no warm-up.
    Raises ValueError for fewer than 0 steps.

    >>> from minidist.train import warm_up
    >>> schedule = warm_up(4)
    >>> [schedule(step) for step in range(6)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    """
    if steps < 0:
        raise ValueError(f"a warm-up has at least 0 steps, not {steps}")
    return lambda step: min(1.0, (step + 1) / steps) if step < steps else then(step - steps)


def warm_up_steps(total: int, share: float = 0.002) -> int:
    """The steps of a warm-up that scales with the training: a share of all its steps, and at least one.

    GPTs take 0.001 to 0.005. Raises ValueError for a share outside 0 … 1.

    >>> from minidist.train.schedule import warm_up_steps
    >>> warm_up_steps(100_000), warm_up_steps(100)
    (200, 1)
    """
    if not 0 <= share <= 1:
        raise ValueError(f"a warm-up is a part of {total} steps, from 0 to 1, not {share}")
    return max(1, round(share * total))


def cosine(steps: float, floor: float = 0.1) -> Schedule:
    """From 1 to `floor` in so many steps: floor + (1 − floor)·(1 + cos(π·t/steps))/2, then the floor.
    Raises ValueError for 0 steps or fewer, and for a floor outside 0 … 1.

    >>> from minidist.train import cosine, warm_up
    >>> schedule = warm_up(2, then=cosine(4, floor=0.5))
    >>> [round(schedule(step), 3) for step in range(8)]
    [0.5, 1.0, 1.0, 0.927, 0.75, 0.573, 0.5, 0.5]
    """
    if steps <= 0 or not 0 <= floor <= 1:
        raise ValueError(
            f"a schedule has more than 0 steps and a floor between 0 and 1, not {steps} and {floor}"
        )
    return lambda step: floor + (1 - floor) * (1 + math.cos(math.pi * min(1.0, step / steps))) / 2


# ------------------------------------------------------------
# A batch that grows: small while its gradient is good enough, large when it no longer is.
#
# Early in training the gradients of few samples agree (see `NoiseScale`), so a small batch learns more from each token; and
# it takes the steps that a later, larger one could not afford. GPT-3 grew from 32 K to 3.2 M tokens, linearly in the
# tokens seen, over the first 4 to 12 billion of them.
#
#     batch(t) = first + (last − first)·t/over        of t tokens seen; after `over`, last
#     steps of the ramp: dt/dstep = batch(t), so about over/(last − first)·ln(last/first)
#
# Source: Brown et al. 2020, "Language Models are Few-Shot Learners", appendix B. A function of the tokens seen has no
# state: to resume is to know how many there were.


def batch_ramp(
    first: int = 32_000, last: int = 3_200_000, over: float = 4e9, multiple: int = 1
) -> Callable[[float], int]:
    """The batch, in tokens, as a function of the tokens seen so far.

    multiple: what a batch is a multiple of, rounded down but at least one: ranks · sequences of a micro-batch · T.
    Raises ValueError unless 0 < multiple ≤ first ≤ last, and for a ramp over fewer than 0 tokens.
    Source: Brown et al. 2020, "Language Models are Few-Shot Learners", appendix B.

    >>> from minidist.train import batch_ramp
    >>> batch = batch_ramp(first=1000, last=4000, over=30_000, multiple=500)
    >>> [batch(seen) for seen in (0, 4_000, 5_000, 30_000, 90_000)]
    [1000, 1000, 1500, 4000, 4000]
    """
    if not 0 < multiple <= first <= last or over < 0:
        raise ValueError(
            f"a batch of {first} does not grow to {last} over {over} tokens in multiples of {multiple}"
        )

    def batch(seen: float) -> int:
        share = min(1.0, seen / over) if over else 1.0
        return int(first + (last - first) * share) // multiple * multiple

    return batch


def batches(
    batch: Callable[[float], int], total: float, seen: int = 0
) -> Iterator[tuple[int, int]]:
    """(tokens seen before it, its tokens) of each step until `total` tokens are seen; `seen` of them already.

    The last one may go beyond `total`.

    >>> from minidist.train import batch_ramp
    >>> from minidist.train.schedule import batches
    >>> list(batches(batch_ramp(first=100, last=400, over=300, multiple=100), total=1000))
    [(0, 100), (100, 200), (300, 400), (700, 400)]
    """
    while seen < total:
        size = batch(seen)
        yield seen, size
        seen += size


def ramp_steps(first: float, last: float, over: float) -> float:
    """Steps of a linear ramp, about: over/(last − first)·ln(last/first), as if the batch grew within a step, too.

    >>> from minidist.train.schedule import ramp_steps
    >>> round(ramp_steps(32_000, 3_200_000, 4e9))  # GPT-3's
    5815
    """
    return over / last if first == last else over / (last - first) * math.log(last / first)


# ------------------------------------------------------------
# The learning rate for a batch k times as large, which k micro-batches make.
#
# An epoch then has a k-th of the steps, and the gradient a k-th of the variance. How much longer a step may be follows
# from what shall stay as it was: the way that k small steps would go, or the noise of a step.
# Sources: Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 2.1; Krizhevsky 2014, "One weird trick", section 5;
# Malladi et al. 2022, "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", definition 5.2.


class Scaled(NamedTuple):
    """What a batch k times as large is trained with.

    >>> from minidist.train import scaled
    >>> scaled(0.25, 4, "linear")
    Scaled(lr=1.0, betas=None, eps=None)
    """

    lr: float
    betas: tuple[float, float] | None = None
    eps: float | None = None


def scaled(
    lr: float,
    k: float,
    rule: str,
    betas: tuple[float, float] | None = None,
    eps: float | None = None,
) -> Scaled:
    """The learning rate for a batch k times as large, k > 0, by a rule; up to which k it holds is found by trying.

    "linear": k·lr. k small steps in nearly one direction are one step k times as long (Goyal et al.): SGD, after a
    warm-up, as at the start the direction changes from step to step.
    "root": √k·lr. The noise of a step keeps its variance (Krizhevsky): SGD, Adam, LAMB.
    "adam": √k·lr, 1 − β is k times as large, ε is divided by √k (Malladi et al.): Adam and AdamW follow the same
    stochastic differential equation. It needs betas and eps, which the other rules keep.
    Raises ValueError for another rule, for k ≤ 0, and where "adam" lacks values or k(1 − β) exceeds 1.

    >>> from minidist.train import scaled
    >>> scaled(0.25, 4, "linear").lr, scaled(0.25, 4, "root").lr
    (1.0, 0.5)
    >>> scaled(0.25, 4, "adam", betas=(0.875, 0.9375), eps=2e-8)
    Scaled(lr=0.5, betas=(0.5, 0.75), eps=1e-08)
    """
    if k <= 0:
        raise ValueError(f"a batch is k > 0 times as large, not k = {k}")
    if rule == "linear":
        return Scaled(k * lr, betas, eps)
    if rule == "root":
        return Scaled(math.sqrt(k) * lr, betas, eps)
    if rule != "adam" or betas is None or eps is None:
        raise ValueError(
            f"the rule is linear, root, or adam with betas and eps: not {rule!r} with {betas} and {eps}"
        )
    beta1, beta2 = betas
    larger = 1 - k * (1 - beta1), 1 - k * (1 - beta2)
    if min(larger) < 0:
        raise ValueError(f"k = {k} is too large for betas = {betas}: they would be {larger}")
    return Scaled(math.sqrt(k) * lr, larger, eps / math.sqrt(k))
