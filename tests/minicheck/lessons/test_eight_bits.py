"""Lesson 10: other right ways pass, and the oracle is the library's own result.

The usual mistakes are in course/10_eight_bits/bugs.py, which tests/bank examines.
"""

import math
import sys

import cloudpickle
import pytest
import torch

import minicheck as check
from minicheck.exam import Case
from minicheck.lessons.eight_bits import BlockScales, EightBitLinear
from minicheck.oracles.eight_bits import History, gradients, scales
from minidist.collectives import all_gather
from minidist.train.fp8 import E4M3, E5M2, Delayed, Grain, largest, linear, scale_of, update
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
    y = linear(*leaves)
    y.backward(dy)
    for found, want in zip(
        (y.detach(), *(p.grad for p in leaves)), gradients(x, w, dy), strict=True
    ):
        torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-6 * want.abs().max().item())


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


def by_gathering(comm, x, most):
    """One number from each rank; the largest is taken by each rank itself."""
    own = x.abs().max().reshape(1) if x.numel() else torch.zeros(1)
    amax = all_gather(comm, own).max().item()
    return math.ldexp(1.0, math.ceil(math.log2(amax / most))) if amax else 1.0


def test_other_ways_pass():
    assert accepted(check.block_scales, {"by bits": by_bits}) == ["by bits"]
    assert accepted(check.agreed_scale, {"by gathering": by_gathering}) == ["by gathering"]


def test_a_case_is_what_it_says():
    [(x, *_, most)] = BlockScales().draw(Case(1, "", BlockScales.cases[8].given), rng())
    assert {math.frexp(v / most)[0] for v in x.abs().flatten().tolist()} == {0.5}
