"""Gradient accumulation, and what else changes with it.

accumulate, accumulate_naive          a batch in micro-batches, weighted by what counts in them, or all alike
momentum_for, adjust_momentum_        batch norm's running averages with k updates a step
batch_norm_gap                        how far k micro-batches are from their batch, measured
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .data import DataParallel

# ------------------------------------------------------------
# Gradient accumulation: a batch in k micro-batches, one after the other, in the memory of one.
#
#     naive       backward of loss / k for each             right only where all micro-batches count equally many tokens
#     weighted    backward of loss · tokens / all tokens    the gradient of the mean over all tokens, whatever their sizes
#
# A mean over W = Σ wᵢ tokens is Σ (wᵢ/W) · (mean over the wᵢ of micro-batch i). Sequences of different length, padding
# that does not count, a last batch that is smaller: the naive form gives a token of a short micro-batch more weight than
# one of a long micro-batch. Over ranks the same holds again, with the ranks' own W as weights.
# Source: Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 3, "subtleties and pitfalls".


def accumulate_naive(loss: Callable[[Any], Tensor], micro_batches: Sequence) -> Tensor:
    """Gradients of the mean of the micro-batches' mean losses, which it returns: every micro-batch counts alike.

    >>> import torch
    >>> from minidist.parallel.accumulate import accumulate_naive
    >>> w = torch.tensor(1.0, requires_grad=True)
    >>> accumulate_naive(lambda x: (w * x).mean(), [torch.tensor([1.0, 3.0]), torch.tensor([6.0])])
    tensor(4.)
    >>> w.grad  # the mean of 2 and 6; the mean of all three numbers is 10/3
    tensor(4.)
    """
    parts = []
    for micro in micro_batches:
        part = loss(micro) / len(micro_batches)
        part.backward()
        parts.append(part.detach())
    return torch.stack(parts).sum()


def accumulate(
    loss: Callable[[Any], Tensor],
    micro_batches: Sequence,
    weights: Sequence[float],
    model: DataParallel | None = None,
) -> Tensor:
    """Add to .grad the gradient of the mean loss over all that counts in the micro-batches; returns that mean.

    loss(micro): the mean over what counts in one micro-batch, a scalar with a graph.  weights: how many tokens, or
    samples, count in each, such as `(targets != padding).sum()`; one of 0 is left out, as its mean is 0/0.
    model: its ranks talk once, in the last backward, and .grad becomes that of the mean over all ranks' tokens. All
    ranks must call it, each with as many micro-batches as it has. The returned mean is this rank's: 0 where nothing
    counts.
    Raises ValueError for another number of weights than micro-batches, for a weight that is negative, infinite or nan,
    and, without a model, if nothing counts.

    >>> import torch
    >>> from minidist.parallel.accumulate import accumulate, accumulate_naive
    >>> w = torch.tensor(1.0, requires_grad=True)
    >>> def loss(micro):
    ...     return (w * micro).mean()
    >>> micro_batches = [torch.tensor([2.0, 4.0, 6.0]), torch.tensor([8.0])]
    >>> accumulate(loss, micro_batches, weights=[3, 1]), w.grad  # of the mean of all four numbers
    (tensor(5.), tensor(5.))
    >>> accumulate_naive(loss, micro_batches)  # here the 8 counts as much as the other three
    tensor(6.)
    """
    if len(weights) != len(micro_batches):
        raise ValueError(f"{len(micro_batches)} micro-batches have {len(weights)} weights")
    weights = [float(weight) for weight in weights]
    total = sum(weights)
    if not all(0 <= weight < math.inf for weight in weights) or (model is None and not total):
        raise ValueError(
            f"the weights {weights} of {len(weights)} micro-batches make no mean: they add up to {total}"
        )
    counted = [
        (micro, weight / total)
        for micro, weight in zip(micro_batches, weights, strict=True)
        if weight
    ]
    if model is not None:
        model.weight = total
    mean = torch.zeros(())
    for i, (micro, share) in enumerate(counted):
        with nullcontext() if model is None or i == len(counted) - 1 else model.no_sync():
            part = loss(micro) * share
            part.backward()
        mean = mean.to(part) + part.detach()
    if model is not None and not counted:
        model.average()
    return mean


# ------------------------------------------------------------
# Batch norm is the one layer for which k micro-batches are not their batch.
#
# It normalizes by the mean and the variance of what it is given: of B/k samples instead of B, so outputs and gradients
# are those of another function, with k times the noise in the statistics. And its running averages, kept for evaluation,
# are updated k times a step: of the old ones (1 − m)ᵏ is left instead of 1 − m, and the last micro-batch counts most. The
# second can be mended by another momentum, m' = 1 − (1 − m)^(1/k). The first cannot: larger micro-batches, another norm,
# or statistics over several devices (SyncBatchNorm) help.
# Source: Ioffe and Szegedy 2015, "Batch Normalization", section 3.1; Goyal et al. 2017, sections 2.3 and 3.


def batch_norms(module: nn.Module) -> list[tuple[_BatchNorm, float]]:
    """The batch norms in `module` whose running averages move by a momentum, and it; with None all batches count alike.

    >>> from torch import nn
    >>> from minidist.parallel.accumulate import batch_norms
    >>> net = nn.Sequential(nn.BatchNorm1d(8, momentum=0.1), nn.BatchNorm1d(8, momentum=None))
    >>> [momentum for _, momentum in batch_norms(net)]
    [0.1]
    """
    norms = [m for m in module.modules() if isinstance(m, _BatchNorm)]
    return [(m, m.momentum) for m in norms if m.momentum is not None]


def momentum_for(momentum: float, k: int) -> float:
    """The momentum of running averages with which k updates forget as much as one did: 1 − (1 − momentum)^(1/k).

    >>> from minidist.parallel.accumulate import momentum_for
    >>> m = momentum_for(0.75, k=2)
    >>> m  # two updates leave (1 - m)² = 1/4 of the old averages
    0.5
    """
    return 1 - (1 - momentum) ** (1 / k)


def adjust_momentum_(module: nn.Module, k: int) -> nn.Module:
    """Give every batch norm in `module` the momentum for k micro-batches a step, in place. Returns `module`.

    Raises ValueError for k < 1.

    >>> from torch import nn
    >>> from minidist.parallel.accumulate import adjust_momentum_
    >>> adjust_momentum_(nn.Sequential(nn.BatchNorm1d(8, momentum=0.75)), k=2)[0].momentum
    0.5
    """
    if k < 1:
        raise ValueError(f"a step has k >= 1 micro-batches, not {k}")
    for norm, momentum in batch_norms(module):
        norm.momentum = momentum_for(momentum, k)
    return module


class Gap(NamedTuple):
    """How far k micro-batches are from their batch, each as a part of the batch's own: root mean square of differences.

    outputs, gradients: of the module in training.  mean, variance: of the running averages after the step.
    forgotten: what is left of the running averages from before it, for the batch and for the micro-batches.

    >>> from torch import nn, ones
    >>> from minidist.parallel.accumulate import batch_norm_gap
    >>> batch_norm_gap(nn.BatchNorm1d(4, momentum=0.5), ones(4, 4), k=1)[:4]  # the batch itself
    (0.0, 0.0, 0.0, 0.0)
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

    >>> import torch
    >>> from torch import nn
    >>> from minidist.parallel.accumulate import batch_norm_gap
    >>> x = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    >>> gap = batch_norm_gap(nn.BatchNorm1d(4, momentum=0.5), x, k=4)
    >>> gap.forgotten  # of the old averages the batch leaves 1/2, four micro-batches 1/16
    (0.5, 0.0625)
    >>> gap.outputs > 0.01  # and the outputs are those of another function
    True
    """
    if k < 1 or len(x) % k:
        raise ValueError(f"a batch of {len(x)} does not split into {k} equal micro-batches")
    if not batch_norms(module):
        raise ValueError("no batch norm in the module has a momentum: there is nothing to compare")
    whole, parts, other = (copy.deepcopy(module).train() for _ in range(3))
    if adjusted:
        adjust_momentum_(parts, k)
    y = other(x).detach()
    targets = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).to(y)
    outputs, gradients, mean, variance = (
        math.sqrt((a - b).square().sum() / a.square().sum()) if a.any() else 0.0
        for a, b in zip(
            _after_step(whole, [x], targets), _after_step(parts, x.chunk(k), targets), strict=True
        )
    )
    left, left_each = (1 - batch_norms(net)[0][1] for net in (whole, parts))
    return Gap(outputs, gradients, mean, variance, (left, left_each**k))


def _after_step(net: nn.Module, micro_batches: Sequence[Tensor], targets: Tensor) -> list[Tensor]:
    """The outputs, the gradients, the running means and variances of a step, each in one vector."""
    outputs = []
    net.zero_grad()
    parts = targets.chunk(len(micro_batches))
    for micro, target in zip(micro_batches, parts, strict=True):
        y = net(micro)
        ((y - target).square().mean() / 2 / len(micro_batches)).backward()
        outputs.append(y.detach())
    grads = [p.grad for p in net.parameters() if p.grad is not None]
    means, variances = (
        [b for name, b in net.named_buffers() if name.endswith(kind)]
        for kind in ("running_mean", "running_var")
    )
    return [
        torch.cat([outputs[0].new_empty(0), *(t.flatten() for t in tensors)]).double()
        for tensors in (outputs, grads, means, variances)
    ]
