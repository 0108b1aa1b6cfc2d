"""The exercise of lesson 07 about rounding: a number in a format of so many bits of exponent and fraction.

The formats are drawn, so that no dtype of any library is the answer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from minidist.comm.base import Comm

from ..exam import Case, Exam, ask
from ..plain import kind_of
from ..wrong import Wrong
from .oracle import FORBIDDEN, looks_like, rounded

KNOWN = {(5, 10): "fp16", (8, 7): "bf16"}


def bare(x):
    """A number without its wrapping: a tensor of one element, or a number of numpy's, as Python has it; inf for an int
    that is larger than every float."""
    if type(x) is int and abs(x) > 1e308:
        return math.inf if x > 0 else -math.inf
    if isinstance(x, Tensor) and x.numel() == 1:
        return x.item()
    return float(x) if isinstance(x, float) else x


class RoundTo(Exam):
    name = "round_to"
    right = "fp16, bf16 and 6 other formats: normal and subnormal numbers, ties, 0, and what is too large."
    forbidden = FORBIDDEN
    formats = ((5, 10), (8, 7), (4, 3), (3, 4), (6, 9), None, None, None)
    cases = tuple(
        Case(
            1,
            KNOWN.get(
                f,
                f"{f[0]} bits of exponent, {f[1]} of fraction" if f else "a format drawn at random",
            ),
            f,
        )
        for f in formats
    )

    def draw(self, case, rng):
        pick = lambda low, high: int(torch.randint(low, high, (), generator=rng))
        exponent, fraction = case.given or (pick(3, 8), pick(2, 12))
        bias = 2 ** (exponent - 1) - 1
        powers = torch.randint(1 - bias - fraction - 3, bias + 3, (120,), generator=rng).tolist()
        numbers = [
            m * 2.0**p
            for m, p in zip(torch.randn(120, generator=rng, dtype=torch.float64).tolist(), powers)
        ]
        step, most = 2.0 ** (1 - bias - fraction), (2 - 2.0**-fraction) * 2.0**bias
        ties = [
            (k + 0.5) * step * 2.0**p * s
            for k in (0, 1, 2, 3, 2**fraction, 2**fraction + 1)
            for p in (0, bias)
            for s in (1, -1)
        ]
        # ties in float32
        above = [1 + 2.0 ** -(fraction + 1) + 2.0**-40, 1 + 3 * 2.0 ** -(fraction + 1) - 2.0**-40]
        # the tie between the largest number and what would come next
        edge = most + 2.0 ** (bias - fraction - 1)
        return [
            (
                [
                    1.0,
                    -1.0,
                    0.0,
                    most,
                    -most,
                    edge,
                    most + 0.9 * (edge - most),
                    4 * most,
                    -4 * most,
                    math.inf,
                    -math.inf,
                    step,
                    *ties,
                    *above,
                    *numbers,
                ],
                exponent,
                fraction,
            )
        ]

    def run(self, comm: Comm, yours, numbers, exponent, fraction):
        return [bare(yours(x, exponent, fraction)) for x in numbers]

    def judge(self, case, args, outcome):
        (numbers, exponent, fraction), got = args[0], outcome.results[0]
        where = "" if case.given else f"{exponent} bits of exponent, {fraction} of fraction: "
        for y in got:
            if y is None:
                raise Wrong(f"{where}it returns None. Is there a `return`?")
            if isinstance(y, bool) or not isinstance(y, int | float):
                kind = kind_of(y)
                raise Wrong(
                    f"{where}it returns something of type {kind}, and should return a float."
                )
        for x, y in zip(numbers, got, strict=True):
            want = rounded(x, exponent, fraction)
            if y != want:
                hint = looks_like(numbers, got, exponent, fraction) or _region(
                    x, exponent, fraction
                )
                raise Wrong(f"{where}{x!r} becomes {y!r}, and should become {want!r}. {hint}")


def _region(x: float, exponent: int, fraction: int) -> str:
    bias = 2 ** (exponent - 1) - 1
    smallest, most = 2.0 ** (1 - bias), (2 - 2.0**-fraction) * 2.0**bias
    if x == 0 or math.isinf(x):
        return "0 and inf are what they are."
    if abs(x) < smallest:
        return f"It is below the smallest normal number, 2^{1 - bias}: there the step is 2^{1 - bias - fraction}."
    if abs(x) > most:
        return f"The largest number is {most!r}; half a step beyond it begins inf."
    power = math.frexp(x)[1] - 1
    return f"It lies between 2^{power} and 2^{power + 1}, where the step is 2^{power - fraction}; ties go to even."


def round_to(yours) -> None:
    """`round_to(x, exponent, fraction)`: x as the nearest number of that format, a float."""
    ask(RoundTo(), yours)
