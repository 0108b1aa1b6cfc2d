"""The rules, and the reasons for them."""

import math

import pytest
import torch

from minidist.train.accumulate import Scaled, scaled


def test_the_rules():
    assert scaled(0.1, 8, "linear") == Scaled(0.8)
    assert scaled(0.1, 16, "root", (0.9, 0.99), 1e-8) == Scaled(0.4, (0.9, 0.99), 1e-8)
    found = scaled(1e-3, 4, "adam", (0.9, 0.99), 1e-8)
    assert found.lr == 2e-3 and found.eps == 5e-9 and found.betas == pytest.approx((0.6, 0.96))
    for rule in ("linear", "root"):
        assert scaled(0.1, 1, rule).lr == 0.1 and scaled(
            scaled(0.1, 4, rule).lr, 1 / 4, rule
        ).lr == pytest.approx(0.1)


@pytest.mark.parametrize("k", [2, 8])
def test_linear_k_small_steps_are_one_long_one(k):
    """On a loss with one slope everywhere, exactly."""

    def run(steps, lr):
        w = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr)
        for _ in range(steps):
            optimizer.zero_grad()
            (w * torch.tensor([1.0, 2.0, -3.0])).sum().backward()
            optimizer.step()
        return w.detach()

    assert torch.allclose(run(k, 0.01), run(1, scaled(0.01, k, "linear").lr), 1e-14)


@pytest.mark.parametrize("k", [4, 16])
def test_root_the_noise_of_a_step_keeps_its_variance(k):
    noise = torch.randn(4000, k, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one, many = 0.1 * noise[:, 0], scaled(0.1, k, "root").lr * noise.mean(1)
    assert many.var() / one.var() == pytest.approx(1, abs=0.1)


def test_adam_remembers_as_many_samples():
    """The weight of what is k·100 samples old: of single ones, and of batches k times as large."""
    k, beta = 4, 0.999
    larger = scaled(1, k, "adam", (0.9, beta), 1e-8).betas[1]
    assert larger**100 == pytest.approx(beta ** (k * 100), rel=2e-3) and math.isclose(
        1 - larger, k * (1 - beta)
    )


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((0.1, 0, "linear"), "k > 0 times as large, not k = 0"),
        ((0.1, 2, "cubic"), "linear, root, or adam with betas and eps: not 'cubic'"),
        ((0.1, 2, "adam"), "not 'adam' with None and None"),
        ((0.1, 20, "adam", (0.9, 0.99), 1e-8), r"k = 20 is too large for betas = \(0.9, 0.99\)"),
    ],
)
def test_refused(args, said):
    with pytest.raises(ValueError, match=said):
        scaled(*args)
