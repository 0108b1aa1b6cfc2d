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


def by_rows(x: Tensor, dtype: torch.dtype, **how) -> Tensor:
    """`x` in eight bits and back, by a scale for each row."""
    return torch.cat([rounded(row[None], dtype, **how) for row in x])


def plain(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` as it is: nothing is rounded."""
    return x


def gradients(
    x: Tensor,
    w: Tensor,
    dy: Tensor,
    forward=E4M3,
    backward=E5M2,
    first=by_rows,
    second=by_rows,
    **how,
):
    """y, dx, dW of a linear layer, with scales for the rows of what each product sums over.

    first, second: how the first and the second operand of each product is rounded.
    """
    y = first(x, forward, **how) @ second(w, forward, **how).t()
    dx = first(dy, backward, **how) @ second(w.t(), forward, **how).t()
    dw = first(dy.t(), backward, **how) @ second(x.t(), forward, **how).t()
    return y, dx, dw


def terms(x: Tensor, w: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    """Of each number of y, dx and dW, the sum of the magnitudes of its terms."""
    x, w = x.abs(), w.abs()
    dy = dy.abs()
    return x @ w.t(), dy @ w, dy.t() @ x


class History:
    """Scales of a tensor by the steps before. fresh: this step's counts at once; last: only the last one's counts;
    forever: no step is forgotten; bad: an inf counts; single: each tensor is a step of its own."""

    def __init__(
        self, length, most, fresh=False, last=False, forever=False, bad=False, single=False
    ):
        self.length = None if forever else 1 if last else length
        self.most = most
        self.fresh = fresh
        self.bad = bad
        self.single = single
        self.steps: list[float] = []
        self.now: list[float] = []

    @property
    def scale(self) -> float:
        counted = self.steps[-self.length :] if self.length else self.steps
        amax = max([*counted, *(self.now if self.fresh else [])], default=0.0)
        return power(min(amax, 1e30), self.most)

    def see(self, x: Tensor) -> None:
        self.now.append(magnitude(x))
        if self.single:
            self.step()

    def step(self) -> None:
        finite = all(map(math.isfinite, self.now))
        if self.now and (finite or self.bad):
            self.steps.append(max(self.now))
        self.now = []

    def state(self) -> list[float]:
        return self.steps[-self.length :] if self.length else list(self.steps)

    def load(self, state: list[float]) -> None:
        self.steps, self.now = list(state), []
