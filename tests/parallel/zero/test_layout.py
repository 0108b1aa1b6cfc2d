"""Who owns what: balanced, the same everywhere, and laid out by owner in one buffer."""

import pytest
import torch
from torch import nn

from minidist.comm import World
from minidist.models import gpt, mlp
from minidist.parallel.zero import ShardedOptimizer
from minidist.parallel.zero.layout import FlatParameters, best_fit
from tests.largest import largest


def test_largest_first_to_the_emptiest():
    assert best_fit([3, 9, 4, 4, 2], [0, 0]) == [1, 0, 1, 1, 0]  # 9 | 4 4 3 | 2
    assert best_fit([5, 5, 5, 5], [0, 0, 0]) == [0, 1, 2, 0]
    assert best_fit([1, 2], [4, 0]) == [1, 1] and best_fit([], [0]) == []


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_balance(n):
    """No rank has more than 4/3 of the best possible, which is at least the mean and the largest."""
    random = torch.Generator().manual_seed(n)
    for _ in range(50):
        sizes = (torch.rand(20, generator=random) ** 3 * 1000).int().tolist()
        owners = best_fit(sizes, [0] * n)
        loads = [sum(s for s, o in zip(sizes, owners, strict=True) if o == r) for r in range(n)]
        assert largest(loads) <= 4 / 3 * max(sum(sizes) / n, max(sizes)) + 1


def flat(comm):
    shapes = [(2, 3), (4,), (), (0,)]
    params = [
        nn.Parameter(torch.full(shape, float(i + 10 * comm.rank))) for i, shape in enumerate(shapes)
    ]
    strided = nn.Parameter(torch.arange(6.0).view(2, 3).t())
    one = FlatParameters([*params, strided], [1, 0, 2, 1, 0], comm)
    one.chunks[comm.rank].fill_(comm.rank)
    one.gather()
    return one, [*params, strided]


def test_flat_parameters():
    for rank, (one, params) in enumerate(World(3).run(flat)):
        assert [c.tolist() for c in one.chunks] == [[0.0] * 10, [1.0] * 6, [2.0]]
        assert [p.shape for p in params] == [(2, 3), (4,), (), (0,), (3, 2)] and params[
            4
        ].stride() == (1, 3)
        assert [p.detach().unique().tolist() for p in params] == [[1.0], [0.0], [2.0], [], [0.0]]
        assert all(
            p.untyped_storage()._cdata == one.buffer.untyped_storage()._cdata for p in params
        )
        copy, views = one.like(torch.float64)
        assert copy.dtype == torch.float64 and copy.tolist() == one.chunks[rank].tolist()
        mine = {0: [1, 4], 1: [0], 2: [2]}[rank]
        assert {id(p) for p in views} == {id(params[i]) for i in mine}
        for i in mine:
            assert (
                views[params[i]].shape == params[i].shape
                and views[params[i]].stride() == params[i].stride()
            )
        assert one.moved() == []
        params[0].data = params[0].data.clone()
        assert one.moved() == [params[0]]


@pytest.mark.parametrize(
    "make", [lambda: mlp([50] * 13), lambda: gpt(layers=6, hidden=32, heads=4, vocab=60, context=8)]
)
def test_models_are_shared_evenly(make):
    """Of a model with layers to share, no rank owns a tenth more than its part."""

    def program(comm):
        model = make()
        optimizer = ShardedOptimizer(model.named_parameters(), torch.optim.SGD, comm, lr=0.1)
        sizes = {name: p.nbytes for name, p in model.named_parameters()}
        loads = [
            sum(sizes[name] for name, owner in optimizer.owners.items() if owner == r)
            for r in range(comm.size)
        ]
        return loads, optimizer.owners

    for n in (2, 3, 4):
        results = World(n).run(program)
        assert all(found == results[0] for found in results)
        loads = results[0][0]
        assert largest(loads) < 1.1 * sum(loads) / n and len(loads) == n
