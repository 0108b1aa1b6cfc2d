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
    "Below the smallest normal number the step is the same as just above it: subnormal numbers are not 0.": dict(
        flush=True
    ),
    "Below the smallest normal number the step is the same as just above it: it gets no finer.": dict(
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
    """Weights in half, masters and momenta in fp32, one of each, and `places`, which of them each gradient is of:
    `step(grads)`. slip: one of SLIPS."""

    def __init__(
        self,
        weights: list[Tensor],
        masters: list[Tensor],
        momenta: list[Tensor],
        places: list[int],
        scale: float,
        lr: float,
        mu: float,
        slip: str = "",
    ):
        self.weights, self.masters, self.momenta = (
            [x.clone() for x in some] for some in (weights, masters, momenta)
        )
        self.places = places
        self.scale = scale
        self.lr = lr
        self.mu = mu
        self.slip = slip

    def step(self, grads: list[Tensor | None]) -> bool:
        """Whether it stepped."""
        found = any(g is not None and not g.isfinite().all() for g in grads)
        if self.slip == "nothing":
            return not found
        skipped = found and self.slip != "steps"
        if not skipped or self.slip == "momenta":
            for i, parts in self._parts(grads):
                self._move(i, [g for g in parts if g is not None], skipped)
        return not skipped

    def _parts(self, grads: list[Tensor | None]) -> list[tuple[int, list[Tensor | None]]]:
        """The parts of each weight's gradient."""
        if self.slip == "each part":
            return [(i, [g]) for i, g in zip(self.places, grads)]
        parts: list[list[Tensor | None]] = [[] for _ in self.masters]
        for i, g in zip(self.places, grads):
            parts[i].append(g)
        if self.slip == "first part":
            parts = [some[:1] for some in parts]
        if self.slip == "last part":
            parts = [some[-1:] for some in parts]
        return list(enumerate(parts))

    def _move(self, i: int, parts: list[Tensor], skipped: bool) -> None:
        v = self.momenta[i]
        if not parts and self.slip != "coasts":
            return
        v.mul_(1 if self.slip == "no mu" else self.mu)
        if parts:
            v.add_(self._unscaled(parts))
        if not skipped:
            self._update(i)

    def _unscaled(self, parts: list[Tensor]) -> Tensor:
        scale = 1 if self.slip == "scaled" else self.scale
        if self.slip == "in half":
            wide = [(g / scale).float() for g in parts]
        elif self.slip == "adds in half":
            wide = [sum(parts[1:], parts[0]).float() / scale]
        else:
            wide = [g.float() / scale for g in parts]
        total = sum(wide[1:], wide[0])
        return total / len(parts) if self.slip == "mean" else total

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
    "from weights": "The update was added to the rounded weight, so that what rounding had lost stays lost: step the "
    "master.",
    "coasts": "A weight without a gradient was moved by its momentum: leave it alone.",
    "momenta": "The step was skipped, but the momenta were changed: nothing may change.",
    "first part": "Of a shared weight's gradient only the first part was used: add up all that are there.",
    "last part": "Of a shared weight's gradient only the last part was used: add up all that are there.",
    "nothing": "It is as it was before the first step: change the tensors that were given, in place.",
    "each part": "A shared weight was stepped once for each part of its gradient: add up the parts, then step once.",
    "adds in half": "The parts of a shared weight's gradient were added in half precision, where they overflow or lose "
    "bits: convert first.",
    "mean": "The parts of a shared weight's gradient were averaged: they should be added.",
    "steps": "It stepped with a gradient that is inf or nan.",
}


# What a dynamic scale is made of, in this order.
How = tuple[float, float, float, int, int, float]


def scales(how: How, found: list[bool], slip: str = "", at: int = -1) -> list[float]:
    """The scale after each update. slip: one of COUNTING, or of LOADING, which then happens before update `at`."""
    scale, growth, backoff, interval, patience, least = how
    interval += {"one late": 1, "one early": -1}.get(slip, 0)
    patience += {"too patient": 1, "impatient": 1 - patience}.get(slip, 0)
    good = 0
    bad = 0
    out = []
    for i, overflow in enumerate(found):
        if i == at:
            good = 0 if slip in ("good", "both") else good
            bad = 0 if slip in ("bad", "both") else bad
        if overflow:
            bad += 1
            backs_off = bad >= patience
            restarts = slip != "keeps counting" and (backs_off or slip != "tolerates")
            good = 0 if restarts else good
            if backs_off:
                scale = scale * backoff if slip == "no floor" else max(scale * backoff, least)
                bad = 0 if slip == "patient again" else bad
        else:
            good += 1
            bad = 0 if slip == "in a row" else bad
            if good >= interval:
                scale *= growth
                good = good if slip == "never resets" else 0
                bad = bad if slip == "never patient" else 0
        out.append(scale)
    return out


COUNTING = {
    "keeps counting": "An overflow begins the count of good steps again.",
    "tolerates": "Every overflow begins the count of good steps again, even one that leaves the scale as it is.",
    "one late": "It grows one step late: the step that completes the interval counts.",
    "one early": "It grows one step early.",
    "never resets": "After it has grown, the count begins again.",
    "impatient": "It does not wait: the scale backs off from overflow number `patience` on.",
    "too patient": "It waits for one overflow too many: number `patience` is the first that backs off.",
    "patient again": "Once its patience is at an end, every overflow backs off, until the scale has grown.",
    "in a row": "A good step does not forget the overflows before it: they are counted until the scale grows.",
    "never patient": "When the scale grows, the count of overflows begins again.",
    "no floor": "It falls below `least`.",
}

LOADING = {
    "good": "The count of good steps belongs to the state: it began again at 0.",
    "bad": "The count of overflows belongs to the state: it began again at 0.",
    "both": "The two counts, of good steps and of overflows, belong to the state: they began again at 0.",
}


def finite(value) -> bool:
    """Whether there is no inf or nan in a value: a number, a tensor, or a list, tuple or dict of them."""
    if isinstance(value, Tensor):
        return bool(value.isfinite().all())
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return all(map(finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def blamed(steps: list[tuple]) -> list[str]:
    """Of calls (name, args, kwargs, output, ...) the names of those that get finite numbers, and return others."""
    return [
        name
        for name, args, kwargs, output, *_ in steps
        if finite((args, kwargs)) and not finite(output)
    ]
