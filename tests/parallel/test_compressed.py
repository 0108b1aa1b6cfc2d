"""Buckets whose average a compression makes: what it is handed, when, and what is never handed to it twice."""

import pytest
import torch
from torch import nn

from minidist.collectives import all_reduce_
from minidist.comm import World, launch
from minidist.parallel.compressed import CompressedBucket, Copies
from minidist.parallel.data import DataParallel
from tests.parallel.cases import difference, gradients, made, mse


class Recorded:
    """An exact average that writes down what it sees."""

    def __init__(self, whole=False):
        self.calls, self.shares = [], []
        self.first = self.before if whole else None

    def before(self, comm, buckets, share):
        self.shares.append(1.0 if share is None else float(share))
        self.calls.append([name for bucket in buckets for name in bucket.views])

    def average_(self, comm, bucket, algorithm):
        self.calls.append({name: g.clone() for name, g in bucket.views.items()})
        all_reduce_(comm, bucket.buffer, algorithm=algorithm)
        self.calls.append(bucket.there())


def batch_of(rank, size=2):
    random = torch.Generator().manual_seed(10 + rank)
    return torch.randn(size, 6, generator=random, dtype=torch.float64)


def program(comm, options, weighted, whole):
    compression = Recorded(whole)
    model = DataParallel(made("hard", comm.rank), comm, compression=compression, **options)
    size = comm.rank + 1 if weighted else 2
    model.weight = size if weighted else None
    mse(model(batch_of(comm.rank, size)), 0).backward()
    return gradients(model.module), compression.calls, compression.shares


@pytest.mark.parametrize(
    "options", [{}, {"bucket_bytes": 1}, {"bucket_bytes": 300, "overlap": False}]
)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_shares_in_sums_out(options, weighted, whole):
    n, module = 3, made("hard", 0)
    mse(module(torch.cat([batch_of(r, r + 1 if weighted else 2) for r in range(n)])), 0).backward()
    results = World(n).run(program, options, weighted, whole)
    for grads, calls, shares in results:
        assert difference(grads, gradients(module)) < 1e-14
        assert shares == ([] if not whole else pytest.approx([1.0 if not weighted else shares[0]]))
        if whole:
            assert "never.weight" in calls.pop(0)
        assert not {"never.weight", "never.bias"} & set().union(*calls[1::2])
        assert set().union(*calls[1::2]) == {name for name, g in grads.items() if g is not None}
    if weighted and whole:
        assert [shares[0] for _, _, shares in results] == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    parts = [
        {name: g for call in calls[0::2] for name, g in call.items()} for _, calls, _ in results
    ]
    total = sum(part["first.weight"] for part in parts)
    if not whole or not weighted:
        assert (total - results[0][0]["first.weight"]).abs().max() < 1e-14


def test_over_processes():
    ours, shm = World(2).run(program, {}, True, True), launch(program, 2, {}, True, True)
    assert difference(ours[0][0], shm[0][0]) == 0


def test_views_keep_the_strides_of_the_parameters():
    p = nn.Parameter(torch.randn(3, 4).t())
    bucket = CompressedBucket([p], ["p"], None, Copies())
    assert bucket.views["p"].shape == (4, 3) and bucket.views["p"].stride() == (1, 4)
    assert bucket.views["p"].untyped_storage()._cdata == bucket.grads.untyped_storage()._cdata


def test_an_average_is_set_aside_as_a_copy():
    p = nn.Parameter(torch.zeros(2))
    averages = Copies()
    room = torch.tensor([1.0, 2.0])
    averages.give(p, room)
    assert p.grad is room
    averages.set_aside(p)
    assert p.grad is None
    room.fill_(10)
    averages.give(p, room)
    assert p.grad.tolist() == [11.0, 12.0]
