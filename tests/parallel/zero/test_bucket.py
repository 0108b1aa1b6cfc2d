"""Large gradients in slices and small ones packed, at any border between the two; gradients laid out in odd ways."""

import pytest
import torch
from torch import nn

from minidist.comm import World
from minidist.parallel.zero import ShardedOptimizer, bucket
from tests.parallel.cases import difference
from tests.parallel.zero.cases import serial, train


@pytest.mark.parametrize(("piece", "small"), [(16, 8), (64, 48), (40, 400), (8, 1), (1 << 20, 1)])
def test_slices(monkeypatch, piece, small):
    """Slices of 2, 8 and 5 numbers, of 1, and of whole gradients; what is packed is more than a slice, too."""
    monkeypatch.setattr(bucket, "SLICE", piece)
    monkeypatch.setattr(bucket, "SMALL", small)
    for n, stage in ((2, 2), (3, 1)):
        results = World(n).run(train, "hard", "adamw", stage)
        assert all(
            alike and difference(params, serial("hard", "adamw")[0]) < 1e-12
            for params, alike, _ in results
        )


def rounds(comm, sizes):
    """A reduction of gradients of so many numbers in one bucket."""
    params = [nn.Parameter(torch.zeros(size)) for size in sizes]
    optimizer = ShardedOptimizer(params, torch.optim.SGD, comm, 1, lr=1.0)
    for p in params:
        p.grad = torch.full_like(p, comm.rank)
    optimizer.step()
    return [p.detach().unique().tolist() for p in params]


def test_messages(monkeypatch):
    """Slices of 100 numbers: a round for every piece of the owner with most, the last one with flags."""
    monkeypatch.setattr(bucket, "SLICE", 400)
    monkeypatch.setattr(bucket, "SMALL", 200)
    worlds = []
    for sizes, pieces in (
        ([250, 250], 4),
        ([100, 10], 2),
        ([10, 10], 1),
        ([40] * 10, 3),
        ([250, 20], 4),
    ):
        world = World(2)
        assert world.run(rounds, sizes) == [[[-0.5]] * len(sizes)] * 2
        worlds.append((world.trace.messages(0), pieces))
    # broadcast, all-gather
    assert [messages for messages, _ in worlds] == [2 + pieces + 1 for _, pieces in worlds]


def test_gradients_laid_out_otherwise():
    """By hand one rank's gradient is transposed, one expanded: the numbers meet their own."""

    def program(comm):
        p = nn.Parameter(torch.zeros(2, 3))
        optimizer = ShardedOptimizer([p], torch.optim.SGD, comm, 2, lr=1.0)
        p.grad = torch.arange(6.0).view(3, 2).t() if comm.rank else torch.ones(3).expand(2, 3)
        optimizer.step()
        return p.detach()

    want = -(torch.arange(6.0).view(3, 2).t() + 1) / 2
    assert all(torch.equal(found, want) for found in World(2).run(program))


def test_a_large_gradient_is_not_copied():
    """A reduction of 4 MB by two ranks takes room for what a ring receives, and nothing packed."""

    def program(comm):
        p = nn.Parameter(torch.zeros(1 << 20))
        optimizer = ShardedOptimizer(
            [p, nn.Parameter(torch.zeros(1 << 20))], torch.optim.SGD, comm, 1, lr=1.0
        )
        optimizer.gradients()
        for q in optimizer.param_groups[0]["params"]:
            q.grad = torch.ones_like(q)
        before = comm.now()
        optimizer.gradients()
        return before

    world = World(2, meter=True)
    start = world.run(program)[0]
    memory = world.trace.memory[0]
    during = memory.total[memory.times >= start].max()
    assert 4 << 22 < during < (5 << 22) + 4096
