"""The norm over all ranks is that of all gradients, and clipping by it the serial clipping."""

import math

import pytest
import torch
from torch import nn

from minidist.comm import World
from minidist.parallel.zero import ShardedOptimizer
from minidist.parallel.zero.norm import clip_, global_norm
from tests.parallel.cases import difference, made
from tests.parallel.zero.cases import losses

NORMS = [1.0, 2.0, 3.5, math.inf]


def grads(rank):
    """Uneven: rank 2 has none."""
    random = torch.Generator().manual_seed(rank)
    return [
        torch.randn(size, generator=random, dtype=torch.float64)
        for size in ((3, 2), (5,), (0,))[: 3 - rank]
    ]


@pytest.mark.parametrize("kind", NORMS)
def test_norm(kind):
    everything = torch.cat([g.reshape(-1) for r in range(3) for g in grads(r)])
    want = torch.linalg.vector_norm(everything, kind)
    found = World(3).run(
        lambda comm: global_norm(comm, [g for g in grads(comm.rank) if g.numel()], kind)
    )
    assert all(torch.equal(x, found[0]) for x in found) and abs(found[0] - want) < 1e-14


def test_a_norm_beyond_fp16():
    def program(comm):
        mine = [torch.full((300,), 1e4, dtype=torch.float16)]
        return clip_(comm, mine, 1.0), mine[0]

    for norm, g in World(2).run(program):
        assert norm == pytest.approx(1e4 * 600**0.5, rel=1e-6)
        assert g.double().norm().item() == pytest.approx(0.5**0.5, rel=2e-3)


@pytest.mark.parametrize("kind", [0.0, -1.0, math.nan])
def test_what_is_no_norm(kind):
    with pytest.raises(ValueError, match="type of a norm is above 0"):
        World(1).run(lambda comm: global_norm(comm, [], kind))


def clipped(comm, make, most, kind):
    """20 steps with clipping; the parameters, and the norm before each."""
    model = made("hard", 0)
    optimizer = make(model.parameters(), comm)
    norms = []
    for _, loss in losses(model, comm):
        optimizer.zero_grad()
        loss().backward()
        clip = getattr(optimizer, "clip_grad_norm_", None)
        norm = (
            clip(most, kind) if clip else nn.utils.clip_grad_norm_(model.parameters(), most, kind)
        )
        norms.append(norm.item())
        optimizer.step()
    return [p.detach() for p in model.parameters()], norms


def sgd(params, comm):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize(("most", "kind"), [(0.3, 2.0), (0.1, math.inf), (1e6, 2.0)])
def test_clipping(stage, most, kind):
    params, norms = World(1).run(clipped, sgd, most, kind)[0]
    assert (max(norms) > most) == (most < 1)
    sharded = lambda params, comm: ShardedOptimizer(
        params, torch.optim.SGD, comm, stage, lr=0.1, momentum=0.9
    )
    for n in (3, 12):
        for found, ours in World(n).run(clipped, sharded, most, kind):
            assert difference(found, params) < 1e-12 and ours == pytest.approx(norms, rel=1e-12)


class OwnNorm(ShardedOptimizer):
    """Each rank clips by the norm of what it has itself."""

    def clip_grad_norm_(self, most, kind):
        self.gradients()
        return nn.utils.clip_grad_norm_(
            [p for g in self._inner.param_groups for p in g["params"]], most, kind
        )


def test_a_norm_of_one_rank_is_found():
    params, _ = World(1).run(clipped, sgd, 0.3, 2.0)[0]
    own = lambda params, comm: OwnNorm(params, torch.optim.SGD, comm, 1, lr=0.1, momentum=0.9)
    assert difference(World(2).run(clipped, own, 0.3, 2.0)[0][0], params) > 1e-4
