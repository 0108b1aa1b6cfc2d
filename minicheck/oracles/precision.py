"""What an answer must not call: rounding to any format, a step of masters, a dynamic scale; and the usual slips.

A slip is the right way with one thing changed. None of it is torch's rounding: the tests compare them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FORBIDDEN = ("minidist.train.amp", "minicheck.oracles.precision", "torch.amp.grad_scaler")


def nearest(x: float) -> float:
    """The nearest whole number, a tie to the even one."""
    low = math.floor(x)
    return low + ((x - low, low % 2) > (0.5, 0))


def rounded(
    x: float,
    exponent: int,
    fraction: int,
    to=nearest,
    flush=False,
    saturate=False,
    bias: int | None = None,
    unbounded=False,
    endless=False,
    early=False,
) -> float:
    """`x` in the format with that many bits of exponent and fraction. The flags are slips."""
    if x == 0 or math.isinf(x):
        return x
    bias = 2 ** (exponent - 1) - 1 if bias is None else bias
    power = math.frexp(x)[1] - 1
    if not endless:
        power = max(power, 1 - bias)
    step = 2.0 ** (power - fraction)
    y = math.copysign(to(abs(x) / step) * step, x)
    most = (2 - 2.0**-fraction) * 2.0**bias
    if flush and abs(y) < 2.0 ** (1 - bias):
        return 0.0
    if unbounded or abs(abs(x) if early else y) <= most:
        return y
    return math.copysign(most if saturate else math.inf, x)


ROUNDING = {
    "It is cut off: take the nearest number.": dict(to=math.floor),
    "A tie goes to the even one of its neighbours, not away from zero.": dict(
        to=lambda q: math.floor(q + 0.5)
    ),
    "Below the smallest normal number the step stays what it is there: subnormal numbers are not 0.": dict(
        flush=True
    ),
    "Below the smallest normal number the step stays what it is there: it does not get finer.": dict(
        endless=True
    ),
    "What is too large becomes inf, not the largest number.": dict(saturate=True),
    "What is too large becomes inf: the format ends at (2 − 2^−fraction)·2^bias.": dict(
        unbounded=True
    ),
    "Round first, then see whether it is too large: what rounds down to the largest number stays.": dict(
        early=True
    ),
}


def looks_like(numbers: list[float], got: list[float], exponent: int, fraction: int) -> str | None:
    """The slip that gives exactly these numbers."""
    bias = 2 ** (exponent - 1) - 1
    slips = ROUNDING | {
        f"Is the bias 2^(exponent−1) − 1 = {bias}? It looks like {b}.": dict(bias=b)
        for b in (bias - 1, bias + 1, 2**exponent - 1, bias - 2)
    }
    slips |= {
        f"The fraction has {fraction} bits after the point: the 1 before it is not one of them.": None
    }
    for text, slip in slips.items():
        for f in (fraction,) if slip is not None else (fraction - 1, fraction + 1):
            if got == [rounded(x, exponent, f, **(slip or {})) for x in numbers]:
                return text
    if got == [rounded(torch.tensor(x).item(), exponent, fraction) for x in numbers]:
        return "It is rounded twice: to float32 on the way (torch.tensor of a float), which makes a tie of it."
    if got == [abs(rounded(x, exponent, fraction)) for x in numbers]:
        return "All numbers come out as if they were positive: keep the sign."
    return None


class Masters:
    """Weights in half, masters and momenta in fp32: `step(grads)`. slip: one of SLIPS."""

    def __init__(
        self,
        weights: list[Tensor],
        masters: list[Tensor],
        momenta: list[Tensor],
        scale: float,
        lr: float,
        mu: float,
        slip: str = "",
    ):
        self.weights, self.masters, self.momenta = (
            [x.clone() for x in some] for some in (weights, masters, momenta)
        )
        self.scale = scale
        self.lr = lr
        self.mu = mu
        self.slip = slip

    def step(self, grads: list[Tensor | None]) -> bool:
        """Whether it stepped."""
        found = any(g is not None and not g.isfinite().all() for g in grads)
        if self.slip == "nothing":
            return not found
        if found and self.slip != "steps":
            if self.slip == "momenta":
                self._momenta(grads)
            return False
        self._momenta(grads)
        for i, g in enumerate(grads):
            if g is None and self.slip != "coasts":
                continue
            self._update(i)
        return True

    def _momenta(self, grads: list[Tensor | None]) -> None:
        for m, g in zip(self.momenta, grads):
            if g is not None:
                m.mul_(1 if self.slip == "no mu" else self.mu).add_(self._unscaled(g))
            elif self.slip == "coasts":
                m.mul_(self.mu)

    def _unscaled(self, g: Tensor) -> Tensor:
        if self.slip == "in half":
            return (g / self.scale).float()
        return g.float() / (1 if self.slip == "scaled" else self.scale)

    def _update(self, i: int) -> None:
        w = self.weights[i]
        m = self.masters[i]
        if self.slip == "from weights":
            m.copy_(w)
        m.sub_(self.lr * self.momenta[i])
        w.copy_(m)


SLIPS = {
    "in half": "The gradients were divided in half precision, where they become 0 or lose bits: convert first.",
    "scaled": "The gradients were not divided by the scale.",
    "no mu": "The momentum was not multiplied by mu before the gradient was added.",
    "from weights": "The update was added to the rounded weight, and what rounding had lost was lost again: the master "
    "is what is stepped.",
    "coasts": "A parameter without a gradient was moved by its momentum: it is left alone.",
    "momenta": "The step was skipped, but not for the momenta: nothing may change.",
    "nothing": "It is as it was before the first step: change the tensors that were given, in place.",
    "steps": "It stepped with a gradient that is inf or nan.",
}


def scales(
    init: float, growth: float, backoff: float, interval: int, found: list[bool], slip: str = ""
) -> list[float]:
    """The scale after each update. slip: "keeps counting", "one late", "one early", "after each", "never resets"."""
    scale = init
    good = 0
    out = []
    for bad in found:
        if bad:
            scale *= backoff
            good = good if slip == "keeps counting" else 0
        else:
            good += 1
            if good >= interval + {"one late": 1, "one early": -1}.get(slip, 0):
                scale *= growth
                good = good if slip == "never resets" else 0
        out.append(scale)
    return out


COUNTING = {
    "keeps counting": "An overflow begins the count of good steps again.",
    "one late": "It grows one step late: the step that completes the interval counts.",
    "one early": "It grows one step early.",
    "never resets": "After it has grown, the count begins again.",
}
