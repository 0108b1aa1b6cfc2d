"""Batch norm is the one layer for which k micro-batches are not their batch.

It normalizes by the mean and the variance of what it is given: of B/k samples instead of B, so outputs and gradients
are those of another function, with k times the noise in the statistics. And its running averages, kept for evaluation,
are updated k times a step: of the old ones (1 − m)ᵏ is left instead of 1 − m, and the last micro-batch counts most. The
second can be mended by another momentum, m' = 1 − (1 − m)^(1/k). The first cannot: larger micro-batches, another norm,
or statistics over several devices (SyncBatchNorm) help.
Source: Ioffe and Szegedy 2015, "Batch Normalization", section 3.1; Goyal et al. 2017, sections 2.3 and 3.
"""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

NORMS = nn.modules.batchnorm._BatchNorm


def momentum_for(momentum: float, k: int) -> float:
    """The momentum of running averages with which k updates forget as much as one did: 1 − (1 − momentum)^(1/k)."""
    return 1 - (1 - momentum) ** (1 / k)


def adjust_momentum_(module: nn.Module, k: int) -> nn.Module:
    """Give every batch norm in `module` the momentum for k micro-batches a step, in place. Returns `module`.

    One with momentum None averages all batches alike and stays as it is. Raises ValueError for k < 1.
    """
    if k < 1:
        raise ValueError(f"a step has k >= 1 micro-batches, not {k}")
    for m in module.modules():
        if isinstance(m, NORMS) and m.momentum is not None:
            m.momentum = momentum_for(m.momentum, k)
    return module


class Gap(NamedTuple):
    """How far k micro-batches are from their batch, each as a part of the batch's own: root mean square of differences.

    outputs, gradients: of the module in training.  mean, variance: of the running averages after the step.
    forgotten: what is left of the running averages from before it, for the batch and for the micro-batches.
    """

    outputs: float
    gradients: float
    mean: float
    variance: float
    forgotten: tuple[float, float]


def batch_norm_gap(module: nn.Module, x: Tensor, k: int, adjusted: bool = False) -> Gap:
    """Run a copy of `module` in training on x (B, …), and another one on its k micro-batches, and compare.

    module: with one batch norm at least, which has a momentum; left as it is.  adjusted: with the momentum for k
    micro-batches.  The loss is half the mean square of the outputs' distance from random targets, always the same ones.
    Raises ValueError if k does not divide B, and if no batch norm has a momentum.
    """
    if k < 1 or len(x) % k:
        raise ValueError(f"a batch of {len(x)} does not split into {k} equal micro-batches")
    norms = [m for m in module.modules() if isinstance(m, NORMS)]
    if all(m.momentum is None for m in norms):
        raise ValueError(
            f"of {len(norms)} batch norms in the module 0 have a momentum: there is nothing to compare"
        )
    whole, parts = copy.deepcopy(module).train(), copy.deepcopy(module).train()
    if adjusted:
        adjust_momentum_(parts, k)
    pairs, targets = [], None
    for net, micros in ((whole, [x]), (parts, x.chunk(k))):
        net.zero_grad()
        outputs = []
        for i, micro in enumerate(micros):
            y = net(micro)
            if targets is None:
                targets = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).to(y)
            ((y - targets.chunk(len(micros))[i]).square().mean() / 2 / len(micros)).backward()
            outputs.append(y.detach())
        found = [("gradients", p.grad) for p in net.parameters() if p.grad is not None]
        found += [
            (name.rpartition("running_")[2], b)
            for name, b in net.named_buffers()
            if "running_" in name
        ]
        pairs.append([("outputs", torch.cat(outputs)), *found])
    gaps = {kind: _apart(kind, *pairs) for kind in ("outputs", "gradients", "mean", "var")}
    return Gap(*gaps.values(), (_left(whole), _left(parts) ** k))


def _left(net: nn.Module) -> float:
    """What an update leaves of the first batch norm's running averages."""
    return 1 - next(
        m.momentum for m in net.modules() if isinstance(m, NORMS) and m.momentum is not None
    )


def _apart(kind: str, whole: list, parts: list) -> float:
    both = [(a, b) for (name, a), (_, b) in zip(whole, parts, strict=True) if name == kind]
    off, size = (
        sum(t.double().square().sum() for t in ts)
        for ts in ([a - b for a, b in both], [a for a, _ in both])
    )
    return math.sqrt(off / size) if size else 0.0
