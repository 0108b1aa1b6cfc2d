"""A device's speed is that of products which take far longer than it takes to start one. Its measuring is bounded."""

import time

import pytest
import torch

from minidist.study import speed

META = torch.device("meta")
START = 1e-5  # seconds to start a product on a GPU, and to hear of its end


def pretended(monkeypatch, flops, start=START):
    """Let products take the time of a device of so many FLOP/s; the sizes that are tried, in bytes of both matrices."""
    tried = []

    def seconds(a, product, repeats):
        tried.append(a.numel() * a.element_size() + product.numel() * product.element_size())
        return start + 2 * a.shape[0] ** 3 / flops

    monkeypatch.setattr(speed, "_seconds", seconds)
    return tried


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("flops", [1e9, 5e10, 1e13, 2e14, 1e15])
def test_what_it_costs_to_start_a_product_does_not_show(monkeypatch, flops, dtype):
    pretended(monkeypatch, flops)
    assert speed.measured(META, dtype) == pytest.approx(flops, rel=0.01)


def test_a_small_product_would_show_it(monkeypatch):
    """The check above can fail: of 512 rows, as it was, an H100 would have a thirtieth of its speed."""
    pretended(monkeypatch, 1e15)
    monkeypatch.setattr(speed, "SMALLEST", 512)
    monkeypatch.setattr(speed, "LONG", 0.0)
    assert speed.measured(META, torch.bfloat16) < 1e15 / 30


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_matrices_are_bounded(monkeypatch, dtype):
    tried = pretended(monkeypatch, 1e30, start=0.0)
    speed.measured(META, dtype)
    assert 2**29 <= max(tried) <= speed.LARGEST


def test_products_that_take_long_are_few(monkeypatch):
    ticks = iter(range(1000))
    monkeypatch.setattr(time, "perf_counter", lambda: 0.2 * next(ticks))
    a = torch.ones(2, 2)
    speed._seconds(a, torch.empty(2, 2), 100)
    assert next(ticks) < 10


def test_on_this_cpu():
    """Whatever its speed is, it is that of a product: of a matrix with itself, of the type that was asked for."""
    numbers, product = speed._matrices(torch.device("cpu"), torch.float32, 64)
    assert 0 < speed._seconds(numbers, product, 2) < 60
    torch.testing.assert_close(product, numbers @ numbers)
    assert product.dtype == torch.float32 and numbers.unique().numel() > 4000
    assert 1e7 < speed.peak(torch.device("cpu"), torch.float32) < 1e15


def test_it_draws_no_random_numbers():
    before = torch.get_rng_state()
    speed.measured(torch.device("cpu"), torch.float32)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "known"), [("NVIDIA H100 80GB HBM3", True), ("Some GPU of tomorrow", False)]
)
def test_a_known_gpu_has_its_published_figure(name, known):
    assert (speed.published(name) is not None) == known
