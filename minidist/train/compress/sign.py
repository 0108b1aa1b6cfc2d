"""Sign: one bit for each number, one scale for each tensor, and the error kept for the next time.

    p = g + e      c = mean|p| · sign(p), with sign(0) = 1      e ← p − c      average: the sum of all ranks' c

Signs alone, or their majority, go the wrong way where a few large numbers stand against many small ones, and stay
wrong; scaled, and with the error fed back, SGD converges as without compression. So it is the scaled sign here, a scale
for each tensor, not the majority vote: what is summed is each rank's own c, so the bits are gathered, not reduced.

    rank r sends   [ a scale for each tensor ][ 8 signs in a byte ]   to all others, by a ring: n−1 messages

Cost with N numbers of w bytes in P tensors: (n−1)α + (n−1)(N/8 + wP)β, 32 times less than what dense ones send at
n = 2 in fp32, but it grows with n: dense ones send less from about 64 ranks on. Source: Karimireddy et al. 2019, "Error
Feedback Fixes SignSGD", Algorithm 1 and its layer-wise scaling, with e in the unit of a gradient, not of an update.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...collectives import all_gather
from ...comm.base import Comm
from .base import Lossy, flat

BITS = (128, 64, 32, 16, 8, 4, 2, 1)


class Sign(Lossy):
    """error_feedback: False forgets what the signs do not say, to see what it is for."""

    def __init__(self, error_feedback: bool = True):
        super().__init__()
        self.error_feedback = error_feedback

    def compress_(
        self, comm: Comm, grads: Tensor, views: dict[str, Tensor], algorithm: str | None
    ) -> None:
        tensors = {name: flat(g) for name, g in views.items()}
        if self.error_feedback:
            for name, x in tensors.items():
                x.add_(self.kept(name, "error", x))
        lengths = [x.numel() for x in tensors.values()]
        scales = torch.stack([x.abs().sum() / max(1, x.numel()) for x in tensors.values()])
        whole = torch.cat(list(tensors.values()))
        message = torch.cat([scales.view(torch.uint8), pack(whole >= 0)])
        total = torch.zeros_like(whole)
        for rank, theirs in enumerate(all_gather(comm, message[None])):  # (n, bytes)
            # a copy begins where its dtype may
            scales_of = theirs[: scales.nbytes].clone().view(scales.dtype)
            sent = unpack(theirs[scales.nbytes :], whole.numel(), whole.dtype)
            for part, scale in zip(sent.split(lengths), scales_of, strict=True):
                part.mul_(scale)
            total.add_(sent)
            if rank == comm.rank:
                whole.sub_(sent)
        for name, error, average in zip(
            tensors, whole.split(lengths), total.split(lengths), strict=True
        ):
            if self.error_feedback:
                self.kept(name, "error", error).copy_(error)
            tensors[name].copy_(average)


def pack(positive: Tensor) -> Tensor:
    """(N,) bool to (⌈N/8⌉,) uint8, the first in the highest bit."""
    eights = F.pad(positive.to(torch.uint8), (0, -positive.numel() % 8)).view(-1, 8)
    return (eights * eights.new_tensor(BITS)).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """Back to `length` signs, +1 or −1."""
    ones = packed[:, None].bitwise_and(packed.new_tensor(BITS)) != 0
    return ones.view(-1)[:length].to(dtype).mul_(2).sub_(1)
