"""What overlap gains and which bucket is best: predicted by hand, by the model, and seen in a World that computes."""

import functools
import itertools

import pytest
import torch

from minidist.comm import World
from minidist.comm.cluster import Cluster, Device
from minidist.models import mlp
from minidist.parallel.data import DataParallel
from minidist.study.predict import best_bucket, bucketed_seconds

ALPHA, BETA = 20e-6, 1 / 2e9
LAYERS = [256] * 9  # 8 layers of 256 × 256
FLOPS = 1e11  # of the device, which does nothing but products


def test_by_hand():
    """Three gradients of 6 bytes, 1 s each; 3 ranks; a bucket of 6 bytes takes 4(0.1 + 2·0.05) = 0.8 s."""

    def after(bucket, overlap=True):
        return bucketed_seconds([6, 6, 6], [1, 1, 1], 3, 0.1, 0.05, bucket, bucket, overlap)

    assert after(6) == pytest.approx(3 + 0.8)  # each is done before the next is ready
    assert after(12) == pytest.approx(2 + 1.2 + 0.8)
    assert after(99) == pytest.approx(3 + 4 * (0.1 + 6 * 0.05))
    assert after(6, overlap=False) == pytest.approx(3 + 3 * 0.8)
    slow = bucketed_seconds([6, 6, 6], [0.1, 0.1, 0.1], 3, 0.1, 0.05, 6, 6)
    assert slow == pytest.approx(0.1 + 3 * 0.8)  # the wire never rests
    assert bucketed_seconds([6, 6, 6], [0.1, 0.1, 0.1], 3, 0.1, 0.05, 12, 6) == pytest.approx(
        0.1 + 0.8 + 1.2
    )
    assert (
        bucketed_seconds([6, 6], [1, 2], 1, 0.1, 0.05) == 3
        and bucketed_seconds([], [], 4, 1, 1) == 0
    )


def test_a_first_bucket_that_is_small_starts_early():
    sizes, seconds = [1, *[9] * 11], [0.01] * 12
    early, late = (bucketed_seconds(sizes, seconds, 2, 0.0, 0.1, 50, first) for first in (1, 50))
    assert early == pytest.approx(0.01 + 10.0) and late == pytest.approx(0.06 + 10.0)


def test_sizes_without_times():
    with pytest.raises(ValueError, match="3 gradients have a size, but 2 a time"):
        bucketed_seconds([1, 1, 1], [1, 1], 2, 0, 0)


@pytest.mark.parametrize("n", [2, 8, 64])
def test_the_best_size_on_a_slow_wire_is_a_square_root(n):
    count = 1000
    total = 4_000_000
    compute = 1e-2
    sizes, seconds = [total // count] * count, [compute / count] * count
    alpha, beta = 1e-5 / n, 2e-8
    best = best_bucket(sizes, seconds, n, alpha, beta, range(4000, 400_001, 4000))
    assert best == pytest.approx(total * (2 * (n - 1) * alpha / compute) ** 0.5, rel=0.2)
    # no latency: the smaller the better
    powers = [1 << i for i in range(12, 23)]
    assert best_bucket(sizes, seconds, n, 0.0, beta, powers) == 1 << 12
    # nothing but latency: all in one
    assert best_bucket(sizes, seconds, n, 1.0, beta, powers) == 1 << 22


def test_the_best_size_on_a_fast_wire_keeps_up_with_backward():
    count = 4000
    total = 4_000_000
    compute = 1.0
    n = 4
    alpha = 1e-3
    beta = 2e-8
    sizes, seconds = [total // count] * count, [compute / count] * count
    least = 2 * (n - 1) * alpha / (compute / total - 2 * (n - 1) / n * beta)
    best = best_bucket(sizes, seconds, n, alpha, beta, range(1000, 400_001, 1000))
    times = [
        bucketed_seconds(sizes, seconds, n, alpha, beta, int(size), int(size))
        for size in (best, 1.1 * least, least / 2)
    ]
    assert best > least and times[1] < 1.01 * times[0] and times[2] > 1.4 * times[0]


def modelled(n, alpha=ALPHA, beta=BETA):
    """n ranks whose time is all products and messages."""
    return Cluster.uniform(
        n, alpha, beta, Device("product machine", {torch.float32: FLOPS}, 1 << 40, 1e18)
    )


def alone(comm, batch=256):
    """Bytes of each gradient and the seconds until it is ready, in the order of readiness, without any message."""
    module = mlp(LAYERS, device="meta")
    sizes = []
    times = []
    for p in module.parameters():
        p.register_post_accumulate_grad_hook(
            lambda p: sizes.append(p.nbytes) or times.append(comm.now())
        )
    loss = module(torch.empty(batch, LAYERS[0], device="meta")).sum()
    times.append(comm.now())
    loss.backward()
    return sizes, [b - a for a, b in itertools.pairwise(times)]


def backward_time(comm, bucket_bytes, first_bucket_bytes, overlap, batch=256):
    """Virtual seconds of the second backward."""
    model = DataParallel(
        mlp(LAYERS, device="meta"),
        comm,
        bucket_bytes,
        first_bucket_bytes,
        overlap,
        algorithm="ring",
    )
    for _ in range(2):
        model.zero_grad()
        loss = model(torch.empty(batch, LAYERS[0], device="meta")).sum()
        start = comm.now()
        loss.backward()
    return comm.now() - start


def simulated(n, bucket_bytes, first_bucket_bytes=None, overlap=True, **links):
    world = World(n, cluster=modelled(n, **links), device="meta")
    first = bucket_bytes if first_bucket_bytes is None else first_bucket_bytes
    return max(world.run(backward_time, bucket_bytes, first, overlap))


@functools.cache
def known(n):
    """What `bucketed_seconds` wants to know, from one rank."""
    sizes, seconds = World(1, cluster=modelled(1), device="meta").run(alone)[0]
    assert sum(seconds) == pytest.approx(15 * 2 * 256**3 / FLOPS)  # 8 weights, 7 inputs
    return sizes, seconds, n


BUCKETS = [(1, 1), (300_000, 1024), (600_000, 300_000), (1 << 30, 1 << 30)]


@pytest.mark.parametrize(
    ("n", "bucket", "first", "overlap"),
    [
        *((n, *bucket, True) for n in (2, 3, 4) for bucket in BUCKETS[n % 2 :]),
        (1, 1, 1, True),
        (1, 300_000, 1024, False),
        (2, 300_000, 1024, False),
        (3, 1 << 30, 1 << 30, False),
        (4, 600_000, 300_000, False),
    ],
)
def test_the_world_agrees(n, bucket, first, overlap):
    """But for the flags, 4 bytes a gradient, and chunks that do not come out even."""
    predicted = bucketed_seconds(*known(n), ALPHA, BETA, bucket, first, overlap)
    assert simulated(n, bucket, first, overlap) == pytest.approx(predicted, rel=1e-3)


@pytest.mark.parametrize("n", [2, 4])
def test_overlap_gains_what_is_not_the_last_bucket(n):
    seconds = known(n)[1]
    layer = 4 * (256 * 256 + 256)
    off, on = (simulated(n, layer, overlap=overlap) for overlap in (False, True))
    one = 2 * (n - 1) * (ALPHA + layer / n * BETA)
    assert one < min(filter(None, seconds))  # a fast wire: it waits for backward
    assert off == pytest.approx(sum(seconds) + 8 * one, rel=1e-3) and on == pytest.approx(
        sum(seconds) + one, rel=1e-3
    )


@pytest.mark.parametrize(("alpha", "beta"), [(ALPHA, BETA), (1e-3, BETA), (1e-4, 1 / 2e8)])
def test_the_best_bucket_is_the_best_in_the_world(alpha, beta):
    candidates = [1 << i for i in range(16, 23, 2)]
    best = best_bucket(*known(4), alpha, beta, candidates)
    times = {size: simulated(4, size, alpha=alpha, beta=beta) for size in candidates}
    assert times[best] <= min(times.values()) * (1 + 1e-3)
    assert max(times.values()) > 1.05 * times[best]  # and it matters


def test_results_do_not_depend_on_overlap():
    def program(comm, overlap):
        model = DataParallel(mlp([6, 5, 4, 3], dtype=torch.float64), comm, 100, 50, overlap)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(3):
            optimizer.zero_grad()
            random = torch.Generator().manual_seed(10 * step + comm.rank)
            model(
                torch.randn(2, 6, generator=random, dtype=torch.float64)
            ).square().mean().backward()
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    device = Device("laptop", {torch.float64: 1e9}, 1 << 30, 1e10, 1e-6)
    for on, off in zip(
        *(
            World(3, cluster=Cluster.uniform(3, 1e-5, 1e-8, device)).run(program, overlap)
            for overlap in (True, False)
        ),
        strict=True,
    ):
        assert all(torch.equal(a, b) for a, b in zip(on, off, strict=True))
