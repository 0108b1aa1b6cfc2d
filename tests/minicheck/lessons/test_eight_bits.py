"""Lesson 10: other right ways pass, and the oracle is the library's own result.

The usual mistakes are in course/10_eight_bits/bugs.py, which tests/bank examines.
"""

import math
import sys
from collections import deque

import cloudpickle
import pytest
import torch

import minicheck as check
from minicheck.exam import Case
from minicheck.lessons.eight_bits import BlockScales, EightBitLinear
from minicheck.oracles.eight_bits import History, gradients, scales, terms
from minidist.collectives import all_reduce_
from minidist.train.fp8 import (
    E4M3,
    E5M2,
    Delayed,
    Grain,
    Present,
    largest,
    linear,
    scale_of,
    update,
)
from tests.minicheck.examined import accepted

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel
rng = lambda: torch.Generator().manual_seed(0)


@pytest.mark.parametrize("case", [case for case in BlockScales.cases if "zeros" not in case.what])
def test_scales_are_the_librarys(case):
    [(x, rows, columns, most)] = BlockScales().draw(case, rng())
    dtype = {448.0: E4M3, 57344.0: E5M2}[most]
    assert torch.equal(
        scales(x, rows, columns, most), scale_of(largest(x, Grain(rows, columns)), dtype)
    )


@pytest.mark.parametrize("case", EightBitLinear.cases)
def test_gradients_are_the_librarys(case):
    [(x, w, dy)] = EightBitLinear().draw(case, rng())
    leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
    y = linear(*leaves, scaling=Present("row"))
    y.backward(dy)
    results = y.detach(), *(p.grad for p in leaves)
    for found, want, size in zip(results, gradients(x, w, dy), terms(x, w, dy), strict=True):
        assert bool(((found - want).abs() <= 1e-5 * size).all())


def test_histories_are_the_librarys():
    theirs, ours = Delayed(3), History(3, 448.0)
    for size in (1.0, 500.0, 3.0, 0.1, 0.2, 0.1, 7.0):
        x = torch.full((2, 2), size)
        assert ours.scale == theirs(x, "x").scale.item()
        ours.see(x)
        ours.step()
        update([theirs])


def by_bits(x, rows, columns, most):
    """The exponent by frexp, and blocks by padding."""
    M, K = x.shape
    padded = torch.nn.functional.pad(x, (0, -K % columns, 0, -M % rows))
    blocks = padded.unflatten(1, (-1, columns)).unflatten(0, (-1, rows))
    amax = blocks.abs().amax((1, 3)).double()
    fraction, exponent = torch.frexp(amax / most)
    exponent = torch.where(fraction == 0.5, exponent - 1, exponent)
    return torch.where(amax == 0, 1.0, torch.pow(2.0, exponent.double())).float()


def appended(comm, x, most):
    """amax of the whole travels behind those of the columns, and the exponent is found by frexp."""
    own = torch.zeros(x.shape[1] + 1)
    if len(x):
        own[:-1] = x.abs().amax(0)
        own[-1] = x.abs().max()
    all_reduce_(comm, own, "max")
    powers = []
    for amax in own.tolist():
        fraction, exponent = math.frexp(amax / most)
        powers.append(2.0 ** (exponent - (fraction == 0.5)) if amax else 1.0)
    return powers[-1], torch.tensor(powers[:-1])


def all_rows_at_once(x, w, dy):
    """Scales by frexp, of all rows together."""

    def low(x, dtype):
        fraction, exponent = torch.frexp(x.abs().amax(1, keepdim=True) / torch.finfo(dtype).max)
        scale = torch.where(fraction > 0, torch.pow(2.0, exponent - (fraction == 0.5).int()), 1.0)
        return (x / scale).to(dtype).float() * scale

    forward, backward = torch.float8_e4m3fn, torch.float8_e5m2
    y = low(x, forward) @ low(w, forward).T
    dx = (low(w.T, forward) @ low(dy, backward).T).T
    return y, dx, (low(x.T, forward) @ low(dy.T, backward).T).T


class Remembering:
    """A deque of amaxes, and one number for the step that is going on."""

    def __init__(self, length, most):
        self.most = most
        self.history = deque(maxlen=length)
        self.now = None

    @property
    def scale(self):
        amax = max(self.history) if self.history else 0.0
        return 2.0 ** math.ceil(math.log2(amax / self.most)) if amax else 1.0

    def see(self, x):
        amax = float(x.abs().max())
        if self.now is None or not amax <= self.now:
            self.now = amax if self.now is None or math.isfinite(self.now) else self.now

    def step(self):
        if self.now is not None and math.isfinite(self.now):
            self.history.append(self.now)
        self.now = None

    def state(self):
        return [*self.history]

    def load(self, state):
        self.history = deque(state, maxlen=self.history.maxlen)
        self.now = None


def test_other_ways_pass():
    ways = {"all rows at once": all_rows_at_once}
    assert accepted(check.eight_bit_linear, ways) == ["all rows at once"]
    assert accepted(check.delayed_scale, {"remembering": Remembering}) == ["remembering"]
    assert accepted(check.block_scales, {"by bits": by_bits}) == ["by bits"]
    assert accepted(check.agreed_scales, {"appended": appended}) == ["appended"]


def test_a_case_is_what_it_says():
    [(x, *_, most)] = BlockScales().draw(Case(1, "", BlockScales.cases[8].given), rng())
    assert {math.frexp(v / most)[0] for v in x.abs().flatten().tolist()} == {0.5}
