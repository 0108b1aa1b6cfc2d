"""The largest numbers of a tensor: exactly, or by a threshold from a sample.

Sorting out the k largest of N reads all of them several times. A sample of 1 % has about the same distribution, so its
k/100 largest give a threshold, and one pass over N compares with it:

    sample ── top k/100 ──▶ threshold ── one pass ──▶ about k places ── far more than k? ──▶ exactly k of these

So between none and 2k are chosen, and not the same number on every rank. On meta tensors k are.
Source: Lin et al. 2018, "Deep Gradient Compression", section 5: "a precise threshold is calculated from the
already-selected gradients. Hierarchically calculating the threshold significantly reduces top-k selection time".
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..decide import decide

FAR_MORE = 2  # times as many as wanted


def wanted(length: int, sparsity: float) -> int:
    """k: how many of `length` numbers are sent at this sparsity; at least one."""
    return max(1, round(length * (1 - sparsity)))


def exact(size: Tensor, k: int) -> Tensor:
    """The places, (k,) int64, of the k largest of `size`, (N,), not negative."""
    return size.topk(k, sorted=False).indices


def sampled(size: Tensor, k: int, share: float, seed: int) -> Tensor:
    """The places of about k of the largest. share: how much of `size` is looked at for a threshold."""
    length = size.numel()
    count = max(1, round(share * length))
    places = torch.randint(length, (count,), generator=torch.Generator().manual_seed(seed)).to(
        size.device
    )
    threshold = size[places].topk(max(1, round(k * count / length))).values[-1]
    above = size >= threshold
    found = decide(above.sum(), on_meta=k)
    chosen = torch.nonzero_static(above, size=found)[:, 0]
    return chosen[exact(size[chosen], k)] if found > FAR_MORE * k else chosen
