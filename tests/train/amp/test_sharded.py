"""The scaler, levels and autocast with sharded states: each rank sees only its own gradients, and all skip together."""

import math

import pytest
import torch
import torch.nn.functional as F

from minidist.comm import World, launch
from minidist.models import mlp
from minidist.parallel.zero import ShardedOptimizer
from minidist.train.amp import LossScaler, prepare
from tests.parallel.cases import replicas_equal

STEPS, WIDTHS = 5, [4, 6, 5, 3]


def sgd(params):
    return torch.optim.SGD(params, lr=0.3, momentum=0.9)


def batch(step):
    random = torch.Generator().manual_seed(step)
    return torch.randn(6, WIDTHS[0], generator=random), torch.arange(6) % 3


def serial(bad_step, clip):
    """Losses of a serial run at O2; one step has an inf."""
    amp, losses = prepare(mlp(WIDTHS), sgd, "O2", scaler=LossScaler(256.0)), []
    for step in range(STEPS):
        x, y = batch(step)
        loss = F.cross_entropy(amp.model(x), y)
        losses.append(loss.item())
        amp.step(loss * (math.inf if step == bad_step else 1), clip)
    return losses


def sharded(comm, stage, bad_step, clip):
    """The same over ranks, with the inf in one gradient of the last rank."""
    make = lambda params: ShardedOptimizer(
        params, sgd, comm, stage=stage, master_dtype=torch.float32
    )
    amp = prepare(
        mlp(WIDTHS, seed=comm.rank), make, "O2", scaler=LossScaler(256.0, comm=comm), masters=False
    )
    losses = []
    skips = []
    first = next(amp.model.parameters())
    for step in range(STEPS):
        x, y = (t[comm.rank :: comm.size] for t in batch(step))
        bad = step == bad_step and comm.rank == comm.size - 1
        hook = first.register_hook(lambda grad: grad * math.inf) if bad else None
        loss = F.cross_entropy(amp.model(x), y)
        before, skipped = first.detach().clone(), amp.scaler.skipped
        amp.step(loss, clip)
        if hook:
            hook.remove()
        skips.append(torch.equal(before, first))
        assert skips[-1] == (amp.scaler.skipped > skipped)
        losses.append(loss.item())
    mine = sum(m.numel() for group in amp.optimizer._inner.param_groups for m in group["params"])
    return losses, skips, replicas_equal(comm, list(amp.model.parameters())), mine


def check(results, n, bad_step, clip):
    expected = serial(bad_step, clip)
    losses = [sum(rank) / n for rank in zip(*(r[0] for r in results), strict=True)]
    assert losses == pytest.approx(expected, rel=4e-3)
    for _, skips, same, _ in results:
        assert same and skips == [step == bad_step for step in range(STEPS)]
    assert sum(r[3] for r in results) == sum(p.numel() for p in mlp(WIDTHS).parameters())


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_sharded_optimizer_skips_on_all_ranks(n, stage, clip):
    check(World(n).run(sharded, stage, 2, clip), n, 2, clip)


def test_over_processes():
    check(launch(sharded, 2, 2, 1, None), 2, 1, None)


def test_the_clip_counts():
    """The bound above would let a forgotten clip, or one of scaled gradients, pass if these were alike."""
    assert abs(serial(2, 0.1)[-1] / serial(2, None)[-1] - 1) > 2e-2


def on_meta(comm):
    make = lambda params: ShardedOptimizer(params, sgd, comm, stage=2, master_dtype=torch.float32)
    amp = prepare(mlp(WIDTHS, device="meta"), make, "O2", comm=comm, masters=False)
    amp.step(amp.model(torch.empty(2, 4, device="meta")).sum(), 1.0)
    return amp.scaler.skipped


def test_on_meta():
    assert list(World(2, device="meta").run(on_meta)) == [0, 0]
