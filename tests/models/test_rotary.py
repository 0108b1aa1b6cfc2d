"""Rotary positions against the complex numbers of the paper, and what they are for: only distances count."""

import pytest
import torch

from minidist.models import gpt, rotated

SHAPE = dict(layers=2, hidden=24, heads=4, vocab=50, context=16, dtype=torch.float64)


def by_complex_numbers(x, base=10000.0):
    T, size = x.shape[-2:]
    speeds = torch.tensor([base ** (-2 * i / size) for i in range(size // 2)], dtype=torch.float64)
    turns = torch.polar(
        torch.ones(T, size // 2, dtype=torch.float64), torch.outer(torch.arange(T).double(), speeds)
    )
    return torch.view_as_real(
        torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turns
    ).flatten(-2)


@pytest.mark.parametrize("base", [10000.0, 50.0])
def test_the_formula(base):
    x = torch.randn(2, 3, 9, 8, dtype=torch.float64)
    assert (rotated(x, base) - by_complex_numbers(x, base)).abs().max() < 1e-14
    assert torch.equal(rotated(x)[:, :, 0], x[:, :, 0])


def test_only_distances_count():
    q, k = torch.randn(2, 6, dtype=torch.float64)
    scores = rotated(q.expand(12, 6)) @ rotated(k.expand(12, 6)).T
    for distance in range(-11, 12):
        along = scores.diagonal(distance)
        assert (along - along[0]).abs().max() < 1e-13
    assert (scores[0] - scores[0, 0]).abs()[1:].min() > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(dtype):
    x = torch.randn(5, 300, 8, dtype=torch.float64).to(dtype)
    assert rotated(x).dtype == dtype
    assert (rotated(x).double() - by_complex_numbers(x.double())).abs().max() < 300 * torch.finfo(
        torch.float32
    ).eps + 4 * torch.finfo(dtype).eps


def test_a_gpt_without_added_positions():
    model = gpt(**SHAPE, rotary=True)
    assert "positions.weight" not in model.state_dict()
    x = torch.randint(0, 50, (2, 9))
    swapped = x[:, [1, 0, *range(2, 9)]]
    assert (model(x)[:, -1] - model(swapped)[:, -1]).abs().max() > 1e-3  # the order counts
    for block in model.layers:
        block.attention.rotary = False
    one = model.layers[:1]  # one layer without positions: the last token sees a set
    out = [one[0](model.embed(tokens))[:, -1] for tokens in (x, swapped)]
    assert (out[0] - out[1]).abs().max() < 1e-12


def test_odd_heads():
    with pytest.raises(ValueError, match="a head of size 3 is not a multiple of 2"):
        rotated(torch.zeros(4, 3))
    with pytest.raises(ValueError, match=r"heads of size 24/8 = 3 are odd"):
        gpt(**SHAPE | dict(heads=8), rotary=True)
    with pytest.raises(ValueError, match="17 tokens do not fit into a context of 16"):
        gpt(**SHAPE, rotary=True)(torch.zeros(1, 17, dtype=torch.long))
