"""The formulas, by hand; and what is counted on the wire equals them."""

import pytest
import torch

from minidist.comm import World
from minidist.models import mlp
from minidist.parallel.data import DataParallel
from minidist.train.compress import DGC, Dense, Half, PowerSGD, Sign
from minidist.train.compress.cost import (
    dense_bytes,
    dgc_bytes,
    half_bytes,
    powersgd_bytes,
    sign_bytes,
)

SIZES = [30, 50, 20, 3]
SHAPES = [p.shape for p in mlp(SIZES).parameters()]
LARGE = [64, 1024, 1024, 10]  # 1.1 million weights


def test_by_hand():
    shapes = [(100, 50), (100,)]
    assert dense_bytes(shapes, 4) == 2 * 3 * 4 * 5102
    assert half_bytes(shapes, 4) == 2 * 3 * 2 * 5102
    assert sign_bytes(shapes, 4) == 2 * 3 * 4 * 2 + 4 * 3 * (638 + 8)
    assert powersgd_bytes(shapes, 4, 2) == 2 * 3 * 4 * (2 + 100 + 2 * 150)
    assert dgc_bytes(shapes, 4, 0.99) == 2 * 3 * 4 * (2 + 100) + 4 * 3 * (6 * 50 + 8)
    assert dgc_bytes(shapes, 4, 0.99, small=9999) == 2 * 3 * 4 * (2 + 5100)
    # 3·23 numbers would not save half
    assert powersgd_bytes([(3, 4, 5), ()], 2, 8, w=8) == 2 * 8 * (2 + 61)


def steps(comm, compression, sizes, device, count, dtype=torch.float32):
    model = DataParallel(
        mlp(sizes, dtype=dtype, device=device),
        comm,
        bucket_bytes=1 << 30,
        first_bucket_bytes=1 << 30,
        compression=compression,
    )
    x = torch.ones(2, sizes[0], dtype=dtype, device=device)
    for step in range(count):
        model.zero_grad()
        model(x * (comm.rank + step)).square().sum().backward()


def a_step(n, *args, **kwargs):
    """Bytes of the second step, all ranks together."""
    device = args[-1]
    more, less = (
        World(n, device=device).run(steps, *args, c, **kwargs).trace.bytes_sent() for c in (2, 1)
    )
    return more - less


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_counted(n, device):
    for compression, said in [
        (Dense(), dense_bytes(SHAPES, n)),
        (Half(), half_bytes(SHAPES, n)),
        (Sign(), sign_bytes(SHAPES, n)),
        (PowerSGD(1), powersgd_bytes(SHAPES, n)),
        (PowerSGD(4, min_rate=1), powersgd_bytes(SHAPES, n, 4, 1)),
        (DGC(0.99, small=60, warm_up=()), dgc_bytes(SHAPES, n, 0.99, 60)),
        (DGC(0.9, small=0, clip=1, warm_up=(), masking=False), dgc_bytes(SHAPES, n, 0.9, 0)),
    ]:
        assert a_step(n, compression, SIZES, device) == said


def test_counted_in_float64():
    assert a_step(3, DGC(0.99, warm_up=()), SIZES, "cpu", dtype=torch.float64) == dgc_bytes(
        SHAPES, 3, 0.99, w=8
    )
    assert a_step(3, Sign(), SIZES, "cpu", dtype=torch.float64) == sign_bytes(SHAPES, 3, w=8)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_a_million_weights_at_every_sparsity_of_the_warm_up(n):
    shapes = [p.shape for p in mlp(LARGE, device="meta").parameters()]
    for sparsity in (0.75, 0.9375, 0.984375, 0.996, 0.999) if n == 2 else (0.999,):
        counted = a_step(n, DGC(sparsity, warm_up=()), LARGE, "meta")
        assert counted == dgc_bytes(shapes, n, sparsity)
    if n == 2:
        assert 400 * counted <= a_step(2, None, LARGE, "meta")


def test_a_million_weights_of_values():
    """Beside the meta device: the same, of a real step."""
    assert a_step(2, DGC(warm_up=()), LARGE, "cpu") == a_step(2, DGC(warm_up=()), LARGE, "meta")


def test_a_sampled_threshold_sends_counts_and_not_far_more():
    shapes = [p.shape for p in mlp([200, 300, 10]).parameters()]
    counted = a_step(3, DGC(0.99, sample=0.05, warm_up=()), [200, 300, 10], "cpu")
    exact = dgc_bytes(shapes, 3, 0.99) + 3 * 2 * 8
    assert 0.3 * exact < counted < 2.1 * exact and counted != exact
