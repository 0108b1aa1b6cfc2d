"""TF32 beside its definition, and PyTorch's two switches for it."""

import math
from contextlib import suppress

import pytest
import torch

from minidist.train.amp import TIES, autocast, fp32_products, tf32, tf32_matmul, tf32_products


def defined(x, ties):
    """One number by arithmetic: a whole number of units, 2⁻¹⁰ of its power of two, or of the smallest normal one's."""
    exponent = max(math.frexp(x)[1], -125)
    units = abs(x) / 2.0 ** (exponent - 11)
    whole = {"away": lambda u: math.floor(u + 0.5), "even": round, "zero": math.floor}[ties](units)
    return math.copysign(whole * 2.0 ** (exponent - 11), x)


@pytest.mark.parametrize("ties", TIES)
def test_bit_for_bit(ties):
    random = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (4000,), generator=random).int()
    # ties, their neighbours, carries into the exponent, the smallest numbers
    edges = torch.tensor([0x1000, 0x0FFF, 0x1001, 0x3000, 0x7FF000, 0x7FFFFF, 0x2FFF, 1, 0])
    near = torch.cat([edges + (e << 23) for e in (0, 1, 127, 200, 253)]).int()
    x = torch.cat([bits, near, near | -(2**31)]).view(torch.float32)
    x = x[x.isfinite() & (x.abs() < 2.0**127)]
    found = tf32(x, ties)
    assert found.tolist() == [defined(value, ties) for value in x.tolist()]
    assert ((found.view(torch.int32) & 0x1FFF) == 0).all()
    assert torch.equal(tf32(found, ties), found)


def test_ends_of_the_range():
    largest = 2.0**128 - 2.0**117
    top = torch.tensor([torch.finfo(torch.float32).max])
    assert [tf32(top, ties).item() for ties in TIES] == [math.inf, math.inf, largest]
    special = torch.tensor([math.inf, -math.inf, math.nan, -0.0])
    unusual = torch.tensor([0x7F800001, 0x7FFFFFFF, -1]).int().view(torch.float32)
    for ties in TIES:
        assert tf32(unusual, ties).isnan().all()
        assert repr(tf32(special, ties).tolist()) == "[inf, -inf, nan, -0.0]"


def test_precision_of_a_product(figure):
    random = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, 512, generator=random), torch.randn(512, 64, generator=random))
    exact = a.double() @ b.double()
    off = lambda found: ((found.double() - exact).norm() / exact.norm()).item()
    errors = {
        "fp32": off(a @ b),
        "TF32, nearest": off(tf32_matmul(a, b)),
        "TF32, cut off": off(tf32_matmul(a, b, "zero")),
        "fp16": off(a.half().float() @ b.half().float()),
        "bf16": off(a.bfloat16().float() @ b.bfloat16().float()),
    }
    assert (
        errors["fp32"] < 1e-6 < errors["TF32, nearest"] < errors["TF32, cut off"] < errors["bf16"]
    )
    assert errors["TF32, nearest"] == pytest.approx(errors["fp16"], rel=0.05)
    with autocast(torch.bfloat16):
        assert off(tf32_matmul(a, b)) == errors["TF32, nearest"]
    figure(", ".join(f"{name} {error:.1e}" for name, error in errors.items()))


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"torch\.float32, not from torch\.float64"):
        tf32(torch.ones(1, dtype=torch.float64))
    with pytest.raises(ValueError, match="'away', 'even', 'zero', not 'up'"):
        tf32(torch.ones(1), "up")


@pytest.fixture
def switch():
    """PyTorch's, as it was, at the end."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    yield matmul
    matmul.allow_tf32 = False
    matmul.fp32_precision = before


def test_the_switch(switch):
    assert fp32_products() == "fp32"
    with tf32_products():
        assert (fp32_products(), switch.allow_tf32) == ("tf32", True)
        assert torch.get_float32_matmul_precision() == "high"
        with tf32_products(False):
            assert (fp32_products(), switch.allow_tf32) == ("fp32", False)
        assert (fp32_products(), switch.allow_tf32) == ("tf32", True)
    assert (fp32_products(), switch.fp32_precision, switch.allow_tf32) == ("fp32", "none", False)


def test_either_of_pytorchs_switches_is_seen(switch):
    switch.fp32_precision = "tf32"
    assert fp32_products() == "tf32"
    with suppress(RuntimeError):  # PyTorch's old one cannot be read now
        assert switch.allow_tf32
    switch.fp32_precision = "ieee"
    assert fp32_products() == "fp32"
    switch.allow_tf32 = True
    assert fp32_products() == "tf32"
