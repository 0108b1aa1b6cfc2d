"""The average of all ranks' tensors: naive and in buckets, weighted, in any dtype and layout."""

import pytest
import torch

from minidist.comm import World
from minidist.train.local_sgd import average_parameters
from minidist.train.local_sgd.averages import average_, shares
from tests.largest import largest
from tests.train.local_sgd.cases import both

SHAPES = [(3, 4), (), (5,), (0,), (2, 3, 2), (1,)]


def tensors(rank, dtype=torch.float64):
    random = torch.Generator().manual_seed(rank)
    made = [torch.randn(shape, generator=random, dtype=torch.float64).to(dtype) for shape in SHAPES]
    return [*made, torch.randn(4, 3, generator=random, dtype=torch.float64).to(dtype).t()]


def averaged(comm, how, weights=None, dtype=torch.float64, **options):
    xs = tensors(comm.rank, dtype)
    how(comm, xs, None if weights is None else weights[comm.rank], **options)
    return xs


def off(results, weights, dtype=torch.float64):
    """How far any rank's are from the mean in float64; replicas that differ are infinitely far."""
    every = [tensors(rank, dtype) for rank in range(len(results))]
    total, worst = sum(weights), 0.0
    for i, same in enumerate(zip(*every, strict=True)):
        mean = sum(x.double() * w / total for x, w in zip(same, weights, strict=True))
        for mine in results:
            worst = largest([worst, *(mine[i].double() - mean).abs().flatten().tolist()])
            worst = worst if torch.equal(mine[i], results[0][i]) else float("inf")
    return worst


@pytest.mark.parametrize(
    "options", [{}, {"bucket_bytes": 1}, {"bucket_bytes": 100}, {"algorithm": "naive"}]
)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_in_buckets(n, options):
    assert off(World(n).run(averaged, average_, **options), [1] * n) < 1e-15


@pytest.mark.parametrize("weights", [None, [3, 1, 2], [0, 5, 1]])
def test_both_in_both_worlds(weights):
    for how in (average_parameters, average_):
        for results in both(averaged, 3, how, weights):
            assert off(results, weights or [1, 1, 1]) < 1e-15


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 3e-2), (torch.float16, 3e-3)]
)
def test_dtypes(dtype, bound):
    """Bounds: some roundings of numbers near 2 in that dtype."""
    assert off(World(3).run(averaged, average_, [1, 2, 3], dtype), [1, 2, 3], dtype) < bound


def test_float16_does_not_overflow_in_the_sum():
    def program(comm):
        x = torch.tensor([40_000.0], dtype=torch.float16)
        average_(comm, [x])
        return x.item()

    assert World(4).run(program) == [40_000.0] * 4


def test_without_weights_on_any_rank_all_count_alike():
    assert [float(x) for x in World(4).run(lambda comm: shares(comm, 0.0))] == [0.25] * 4


def test_a_negative_weight_and_a_bucket_without_room():
    with pytest.raises(ValueError, match=r"rank 1 has a weight of -1"):
        World(2).run(lambda comm: average_(comm, [torch.ones(2)], -comm.rank))
    with pytest.raises(ValueError, match=r"room for at least 1 byte, not 0"):
        World(2).run(lambda comm: average_(comm, [torch.ones(2)], bucket_bytes=0))


def test_messages():
    """One all-reduce a bucket; 10 numbers of 8 bytes over 2 ranks."""

    def program(comm, bucket_bytes):
        average_(
            comm, [torch.ones(4, dtype=torch.float64) for _ in range(5)], bucket_bytes=bucket_bytes
        )

    for bucket_bytes, buckets in ((1, 5), (64, 3), (1 << 20, 1)):
        trace = World(2).run(program, bucket_bytes).trace
        assert (trace.messages(0), trace.bytes_sent(0)) == (2 * buckets, 20 * 8)
