"""Dropout and layer norm around the split layers, where a rank has all of the data, or a part of the sequence.

On whole data they are the serial ones, done alike on every rank: the same work n times, and the same memory.
Sequence parallelism does them on a part of the sequence, so that what they keep for backward is divided by n. Then

    dropout   draws other numbers on every rank
    norm      has seen a part of the tokens: the gradients of its scale and shift are summed over the ranks,
              one all-reduce of 2H numbers

Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4.2.2.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch.nn.functional as F
from torch import Tensor

from ...comm.base import Comm
from ...models.gpt import Dropout
from ...models.layers import LayerNorm
from .operators import copy_to
from .random import same_random, split_random


class TensorDropout(Dropout):
    """Sets a part p to zero. split: the data is split, so each rank draws its own numbers; else all draw the same.

    Raises ValueError in training with p > 0 unless `seed_group_` was called.
    """

    def __init__(self, p: float, comm: Comm, split: bool = False):
        super().__init__(p)
        self.comm, self.split = comm, split

    def forward(self, x: Tensor) -> Tensor:
        with self.numbers():
            return super().forward(x)

    def numbers(self):
        """A context that draws the right random numbers, where it draws any."""
        if not (self.training and self.p):
            return nullcontext()
        same_random(self.comm)
        return split_random(self.comm) if self.split else nullcontext()


class SequenceNorm(LayerNorm):
    """Layer norm on a part of the sequence, (…, T/n, H): the gradients of weight and bias are those of all tokens."""

    def __init__(self, hidden: int, comm: Comm, dtype=None, device=None):
        super().__init__(hidden, dtype=dtype, device=comm.device if device is None else device)
        self.comm = comm

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = copy_to([self.weight, self.bias], self.comm)
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)
