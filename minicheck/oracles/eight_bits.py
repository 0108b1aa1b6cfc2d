"""Right answers of the exercises on eight bits, and the usual slips. None of it is the library's."""

from __future__ import annotations

import math

import torch
from torch import Tensor

FORBIDDEN = ("minidist.train.fp8", "minicheck.oracles.eight_bits")
E4M3 = torch.float8_e4m3fn
E5M2 = torch.float8_e5m2


def power(amax: float, most: float, towards=math.ceil) -> float:
    """The smallest power of two s with amax ≤ most·s; 1 of zero."""
    return 2.0 ** towards(math.log2(amax / most)) if amax else 1.0


def magnitude(x: Tensor) -> float:
    return x.abs().max().item()


def scales(x: Tensor, rows: int, columns: int, most: float, amax=magnitude, towards=math.ceil):
    """One for each block of (rows, columns), the last ones smaller: fp32."""
    found = [
        [power(amax(block), most, towards) for block in strip.split(columns, 1)]
        for strip in x.split(rows, 0)
    ]
    return torch.tensor(found)


def rounded(
    x: Tensor, dtype: torch.dtype, scaled: bool = True, back: bool = True, towards=math.ceil
) -> Tensor:
    """`x` in eight bits and back, by one scale. scaled, back: whether it is divided, and multiplied again."""
    most = torch.finfo(dtype).max
    scale = power(magnitude(x), most, towards) if scaled else 1.0
    return (x / scale).clamp(-most, most).to(dtype).float() * (scale if back else 1.0)


def gradients(x: Tensor, w: Tensor, dy: Tensor, forward=E4M3, backward=E5M2, **how):
    """y, dx, dW of a linear layer, with each of x, W and dy in eight bits."""
    x, w = rounded(x, forward, **how), rounded(w, forward, **how)
    low = rounded(dy, backward, **how)
    return x @ w.t(), low @ w, low.t() @ x


class History:
    """Scales of a tensor by the steps before. fresh: this step's counts at once; last: only the last one's counts;
    forever: no step is forgotten; summed: what a step has seen is added; bad: an inf counts."""

    def __init__(self, length, most, fresh=False, last=False, forever=False, bad=False):
        self.length = None if forever else 1 if last else length
        self.most = most
        self.fresh = fresh
        self.bad = bad
        self.steps: list[float] = []
        self.now: list[float] = []

    @property
    def scale(self) -> float:
        counted = self.steps[-self.length :] if self.length else self.steps
        amax = max([*counted, *(self.now if self.fresh else [])], default=0.0)
        return power(min(amax, 1e30), self.most)

    def see(self, x: Tensor) -> None:
        self.now.append(magnitude(x))

    def step(self) -> None:
        finite = all(map(math.isfinite, self.now))
        if self.now and (finite or self.bad):
            self.steps.append(max(self.now))
        self.now = []
