"""The norm of gradients in pieces, and clipping by it."""

import math

import pytest
import torch
from torch import nn

from minidist.comm import World, launch
from minidist.parallel.zero.fully import FullySharded
from minidist.train.norm import global_norm
from tests.parallel.zero.fully.cases import far, rows, serial, tower, train

X = torch.randn(12, 5, generator=torch.Generator().manual_seed(4)).double()


def clipped(comm, limit, kind):
    model = FullySharded(tower(seed=comm.rank), comm, blocks=nn.Linear)
    model(rows(comm, X)).square().mean().backward()
    total = model.clip_grad_norm_(limit, kind)
    return total, [p.grad for p in model.parameters()]


@pytest.mark.parametrize("kind", [2.0, 1.0, 3.0, math.inf])
@pytest.mark.parametrize("limit", [0.0, 0.01, 100.0])
@pytest.mark.parametrize("n", [1, 3])
def test_as_torch_clips(n, limit, kind):
    module = tower()
    module(X).square().mean().backward()
    expected = nn.utils.clip_grad_norm_(module.parameters(), limit, kind)
    results = World(n).run(clipped, limit, kind)
    for total, _ in results:
        assert abs(total - expected) < 1e-12
    for p, *pieces in zip(module.parameters(), *(grads for _, grads in results), strict=True):
        assert (torch.cat(pieces) - p.grad.reshape(-1)).abs().max() < 1e-14


@pytest.mark.parametrize(
    "run", [World(3).run, lambda *args, **more: launch(args[0], 3, *args[1:], **more)]
)
def test_training_with_clipping(run):
    for state in run(train, "hard", "momentum", clip=0.2, blocks=nn.Linear):
        assert far(state, serial("hard", "momentum", clip=0.2)) < 1e-12
    assert far(serial("hard", "momentum", clip=0.2), serial("hard", "momentum")) > 1e-3


def test_each_rank_by_its_own_norm_is_another_direction():
    def wrong(comm):
        model = FullySharded(tower(seed=comm.rank), comm, blocks=nn.Linear)
        model(rows(comm, X)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        return global_norm(comm, [p.grad for p in model.parameters()])

    assert abs(World(2).run(wrong)[0] - 0.01) > 1e-3


def test_nothing_to_clip():
    """On two of three ranks there is nothing."""

    def program(comm):
        model = FullySharded(nn.Linear(1, 1, bias=False), comm)
        before = model.clip_grad_norm_(1.0)
        (model(torch.full((1, 1), 300.0)) * 1e3).sum().backward()
        return before, model.clip_grad_norm_(1.0)

    for before, total in World(3).run(program):
        assert before == 0 and total == 3e5


def test_mistakes():
    with pytest.raises(ValueError, match="at least 0, not -1"):
        World(1).run(clipped, -1, 2.0)
    with pytest.raises(ValueError, match="above 0, not 0"):
        World(1).run(clipped, 1.0, 0)
