"""Gradient accumulation: a batch in k micro-batches, one after the other, in the memory of one.

    naive       backward of loss / k for each             right only where all micro-batches count equally many tokens
    weighted    backward of loss · tokens / all tokens    the gradient of the mean over all tokens, whatever their sizes

A mean over W = Σ wᵢ tokens is Σ (wᵢ/W) · (mean over the wᵢ of micro-batch i). Sequences of different length, padding
that does not count, a last batch that is smaller: the naive form gives a token of a short micro-batch more weight than
one of a long micro-batch. Over ranks the same holds again, with the ranks' own W as weights.
Source: Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 3, "subtleties and pitfalls".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn


def accumulate_naive(loss: Callable[[Any], Tensor], micro_batches: Sequence) -> Tensor:
    """Gradients of the mean of the micro-batches' mean losses, which it returns: every micro-batch counts alike."""
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
    model: nn.Module | None = None,
) -> Tensor:
    """Add to .grad the gradient of the mean loss over all that counts in the micro-batches; returns that mean.

    loss(micro): the mean over what counts in one micro-batch, a scalar with a graph.  weights: how many tokens, or
    samples, count in each, such as `(targets != padding).sum()`; one of 0 is left out, as its mean is 0/0.
    model: a `DataParallel` (what has `no_sync`, `weight` and `average`): its ranks talk once, in the last backward, and
    .grad becomes that of the mean over all ranks' tokens. All ranks must call it, each with as many micro-batches as it
    has. The returned mean is this rank's: 0 where nothing counts.
    Raises ValueError for another number of weights than micro-batches, for a weight that is negative, infinite or nan,
    and, without a model, if nothing counts.
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
    if not counted:
        model.average()
    return mean
