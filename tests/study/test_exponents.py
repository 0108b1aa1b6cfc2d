"""Numbers by exponent: the text exactly, the limits of each dtype, and what is refused."""

import pytest
import torch

from minidist.study import exponents as draw
from minidist.study.exponents import limits, without_exponent
from minidist.train.amp import exponents

X = torch.tensor([0.0, 2.0**-30, 1.5 * 2.0**-20, 2.0**-20, 1.0, 2.0**-13, 2.0**17, float("inf")])


def test_text():
    counted = {"gradients": exponents(X), "times 2¹⁰": exponents(X[:4], scale=2.0**10)}
    assert draw(counted, title="Against fp16").text == (
        "Against fp16\n"
        "  gradients: 8 numbers, 2⁻³⁰ to 2¹⁸; in float16: 12.5 % become 0, 25 % are subnormal, 25 % are normal, "
        "12.5 % become inf, 12.5 % are 0, 12.5 % are inf or nan\n"
        "  times 2¹⁰: 4 numbers, 2⁻²⁰ to 2⁻⁹; in float16: 25 % are subnormal, 50 % are normal, 25 % are 0"
    )
    assert "in bfloat16: 75 % are normal, 12.5 % are 0" in draw(exponents(X, torch.bfloat16)).text


@pytest.mark.parametrize(
    "counted", [exponents(X), {"a": exponents(X), "b": exponents(torch.ones(3))}]
)
def test_drawn_the_same_each_time(counted):
    first = draw(counted)
    assert first.png.startswith(b"\x89PNG") and first.png == draw(counted).png


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_limits_are_those_of_rounding(dtype):
    """Just inside and just outside each, rounded by torch itself."""
    zero, normal, inf = limits(dtype)
    sure = lambda e, part: torch.tensor(part * 2.0**e, dtype=torch.float64).to(dtype).item()
    assert sure(zero, 1.01) > 0 == sure(zero, 0.99)
    assert sure(normal, 1.0) == torch.finfo(dtype).tiny > sure(normal, 0.9) > 0
    assert sure(inf, 1.0) == float("inf") > sure(inf, 0.99)


@pytest.mark.parametrize(
    ("counted", "message"),
    [
        ({}, "1 to 6 counts of one dtype, not 0 of 0"),
        ({"a": exponents(X), "b": exponents(X, torch.bfloat16)}, "not 2 of 2"),
        (exponents(torch.zeros(5)), "none of the 5 numbers has an exponent"),
    ],
)
def test_refused(counted, message):
    with pytest.raises(ValueError, match=message):
        draw(counted)


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        (X, "of 8 numbers 1 is 0 already, 1 inf or nan"),
        (torch.ones(3), "of 3 numbers none is 0 already"),
        (torch.eye(1000), "of 1,000,000 numbers 999,000 are 0 already"),
    ],
)
def test_zeros_are_shown(numbers, says):
    """They have no bar: their count stands beside the row's name."""
    assert without_exponent(exponents(numbers)) == says
