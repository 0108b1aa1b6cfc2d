"""Counts of exponents and of lost updates, against a loop over the numbers."""

import math

import pytest
import torch

from minidist.train.amp import exponents, lost
from tests.largest import smallest

HALVES = [torch.float16, torch.bfloat16]


def numbers(seed=0):
    random = torch.Generator().manual_seed(seed)
    powers = torch.randint(-45, 30, (400,), generator=random)
    x = torch.randn(400, generator=random, dtype=torch.float64) * torch.exp2(powers)
    return torch.cat(
        [
            x,
            torch.tensor(
                [
                    0.0,
                    -0.0,
                    math.inf,
                    -math.inf,
                    math.nan,
                    1.0,
                    -2.0,
                    65504.0,
                    65519.0,
                    65520.0,
                    2.0**-14,
                    2.0**-24,
                    2.0**-25,
                    1.01 * 2.0**-25,
                ]
            ),
        ]
    )


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_counted_one_by_one(dtype, scale):
    x, tiny = numbers() * scale, torch.finfo(dtype).tiny
    kinds, powers = (
        dict.fromkeys(("zeros", "bad", "normal", "subnormal", "underflow", "overflow"), 0),
        {},
    )
    for value in x.tolist():
        held = torch.tensor(value, dtype=torch.float64).to(dtype).item()
        if not math.isfinite(value):
            kind = "bad"
        elif value == 0:
            kind = "zeros"
        else:
            e = math.frexp(abs(value))[1] - 1
            assert 2.0**e <= abs(value) < 2.0 ** (e + 1)
            powers[e] = powers.get(e, 0) + 1
            kind = (
                "underflow"
                if held == 0
                else "overflow"
                if math.isinf(held)
                else "subnormal"
                if abs(held) < tiny
                else "normal"
            )
        kinds[kind] += 1
    found = exponents(numbers(), dtype, scale)
    assert found.counts == dict(sorted(powers.items())) and list(found.counts) == sorted(powers)
    assert {kind: getattr(found, kind) for kind in kinds} == kinds
    assert found.total == len(x) and found.dtype == dtype
    if dtype == torch.float16:
        assert smallest(kinds.values()) > 1


def test_the_limits_of_fp16():
    found = exponents(
        [torch.tensor([65519.0, 65520.0, 2.0**-14]), None, torch.tensor([2.0**-25, 2.0**-24 * 1.0])]
    )
    assert found[3:] == (0, 2, 1, 1, 1)
    assert found.counts == {-25: 1, -24: 1, -14: 1, 15: 2}
    assert found.shifted(3) == {-22: 1, -21: 1, -11: 1, 18: 2}


def test_of_halves_and_of_nothing():
    assert exponents(torch.tensor([2.0**-24], dtype=torch.float16)).counts == {-24: 1}
    assert exponents([]).total == 0 and lost([], []) == 0


@pytest.mark.parametrize("dtype", HALVES)
def test_lost_updates_one_by_one(dtype):
    random = torch.Generator().manual_seed(3)
    w = torch.randn(300, generator=random)
    u = torch.randn(300, generator=random) * torch.exp2(
        torch.randint(-20, 0, (300,), generator=random)
    )
    u[:50] = 0
    held = w.to(dtype)
    stays = [(held[i].double() + u[i].double()).to(dtype) == held[i] for i in range(50, 300)]
    assert 0.2 < lost([u[:10], u[10:]], [w], dtype) == sum(stays) / 250 < 0.8


def test_half_a_step_is_lost():
    one = torch.ones(4)
    up = torch.tensor([2.0**-11, 2.0**-11 * 1.01, 2.0**-10, 0.0])
    assert lost(up, one) == 1 / 3
    assert lost(up, one, torch.bfloat16) == 1
    # exactly half a step goes to the even neighbour, which is the weight
    assert lost(up, 2 * one) == 1


def test_refused():
    with pytest.raises(ValueError, match="2 updates do not fit 3 weights"):
        lost(torch.zeros(2), torch.zeros(3))
    with pytest.raises(ValueError, match="1 of 2 tensors are on the meta device"):
        exponents([torch.zeros(2), torch.zeros(2, device="meta")])
