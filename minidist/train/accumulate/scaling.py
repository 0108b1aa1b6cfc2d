"""The learning rate for a batch k times as large, which k micro-batches make.

An epoch then has a k-th of the steps, and the gradient a k-th of the variance. How much longer a step may be follows
from what shall stay as it was: the way that k small steps would go, or the noise of a step.
Sources: Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 2.1; Krizhevsky 2014, "One weird trick", section 5;
Malladi et al. 2022, "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", definition 5.2.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Scaled(NamedTuple):
    """What a batch k times as large is trained with."""

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
    larger = tuple(1 - k * (1 - beta) for beta in betas)
    if min(larger) < 0:
        raise ValueError(f"k = {k} is too large for betas = {betas}: they would be {larger}")
    return Scaled(math.sqrt(k) * lr, larger, eps / math.sqrt(k))
