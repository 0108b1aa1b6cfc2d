"""The four levels: what is in which dtype, that they train, and that a planted inf skips one step on all ranks."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minidist.comm import World, launch
from minidist.models import mlp, seeded_
from minidist.parallel.data import DataParallel
from minidist.train.amp import LEVELS, LossScaler, Masters, halve_, prepare
from tests.parallel.cases import replicas_equal

f16, f32 = torch.float16, torch.float32


class Net(nn.Module):
    """Linear, batch norm, a tied weight, a buffer of each kind; notes the dtypes that it computes in."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.again = nn.Linear(4, 4)
        self.again.weight = self.first.weight
        self.register_buffer("shift", torch.ones(4))
        self.register_buffer("count", torch.zeros(1, dtype=torch.long))

    def forward(self, x, plus=None):
        self.seen = [x.dtype, self.first(x).dtype, self.norm(self.first(x)).dtype]
        return self.again(self.norm(self.first(x))) + self.shift


def sgd(params):
    return torch.optim.SGD(params, lr=0.125)


@pytest.mark.parametrize(
    ("level", "seen", "weight", "norm", "optimizer", "scale", "out"),
    [
        ("O0", [f32, f32, f32], f32, f32, torch.optim.SGD, 1.0, f32),
        ("O1", [f32, f16, f16], f32, f32, torch.optim.SGD, 2.0**16, f32),
        ("O2", [f16, f16, f16], f16, f32, Masters, 2.0**16, f32),
        ("O3", [f16, f16, f16], f16, f16, torch.optim.SGD, 1.0, f32),
    ],
)
def test_what_is_in_which_dtype(level, seen, weight, norm, optimizer, scale, out):
    net = Net()
    amp = prepare(net, sgd, level)
    with amp.autocast:
        y = amp.model(torch.ones(3, 4))
    assert net.seen == seen and y.dtype == out
    assert net.first.weight is net.again.weight and net.first.weight.dtype == weight
    assert net.norm.weight.dtype == net.norm.running_mean.dtype == norm
    assert (
        net.shift.dtype == (f16 if level in ("O2", "O3") else f32) and net.count.dtype == torch.long
    )
    assert type(amp.optimizer) is optimizer and amp.scaler.get_scale() == scale
    assert len(list(LEVELS)) == 4


def test_bf16_needs_no_scale():
    assert [prepare(Net(), sgd, level, torch.bfloat16).scaler.enabled for level in LEVELS] == [
        False
    ] * 4


def test_masters_start_as_the_halves():
    """Those of ranks with other seeds follow the broadcast of the halves; bits that it did not carry would differ."""
    amp = prepare(Net(), sgd, "O2")
    assert all(
        map(torch.equal, amp.optimizer.masters(), [p.float() for p in amp.model.parameters()])
    )


def test_keywords_and_other_inputs_are_passed_on():
    class Takes(nn.Linear):
        def forward(self, x, index=None, more=None):
            assert x.dtype == more[0].dtype == f16 and index.dtype == torch.long
            return super().forward(x), {"index": index}

    amp = prepare(Takes(2, 2), sgd, "O3")
    y, rest = amp.model(torch.ones(1, 2), index=torch.arange(2), more=[torch.ones(1)])
    assert y.dtype == f32 and rest["index"].dtype == torch.long


@pytest.mark.parametrize("dtype", [f16, torch.bfloat16])
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_near_the_fp32_step(level, dtype):
    """One step of a convolutional net with batch norm: the same loss and update but for rounding."""
    random, out = torch.Generator().manual_seed(0), {}
    x, y = torch.rand(4, 3, 8, 8, generator=random), torch.arange(4)
    for name in ("O0", level):
        net = seeded_(
            nn.Sequential(
                nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4)
            )
        )
        start = torch.cat([p.detach().flatten() for p in net.parameters()])
        amp = prepare(net, sgd, name, dtype)
        with amp.autocast:
            loss = F.cross_entropy(amp.model(x), y)
        amp.step(loss)
        params = getattr(amp.optimizer, "masters", net.parameters)()
        out[name] = loss.item(), torch.cat([p.detach().float().flatten() for p in params]) - start
    (exact, full), (found, update) = out["O0"], out[level]
    coarse = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
    assert abs(found / exact - 1) < 4 * coarse
    lost = (coarse * start.abs()).norm() if level == "O3" else 0  # the weights' own rounding
    assert (update - full).norm() < 30 * coarse * full.norm() + lost


def test_clipping_is_after_unscaling():
    moved = {}
    for level in ("O0", "O1", "O2"):
        amp = prepare(
            mlp([4, 3], seed=2), sgd, level, scaler=LossScaler(256.0, enabled=level != "O0")
        )
        params = getattr(amp.optimizer, "masters", amp.model.parameters)
        before = torch.cat([p.detach().flatten() for p in params()])
        with amp.autocast:
            loss = amp.model(torch.ones(2, 4)).sum()
        amp.step(loss, max_norm=0.5)
        moved[level] = (torch.cat([p.detach().flatten() for p in params()]) - before).norm().item()
    assert list(moved.values()) == pytest.approx([0.0625] * 3, rel=1e-3)
    assert all(p.grad is None for p in amp.model.parameters())


def test_masters_of_another():
    """An optimizer with masters of its own is taken as it is."""
    made = []
    amp = prepare(
        mlp([4, 3]), lambda params: made.append(params) or Masters(params, sgd), "O2", masters=False
    )
    assert type(amp.optimizer.inner) is torch.optim.SGD and all(p.dtype == f16 for p in made[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(level="O4"), "O0, O1, O2, O3 .* not 'O4'"),
        (dict(dtype=f32), "float32"),
    ],
)
def test_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        prepare(mlp([2, 2]), sgd, **arguments)
    with pytest.raises(ValueError, match=r"parameters in \['torch.float64'\]"):
        prepare(mlp([2, 2], dtype=torch.float64), sgd)


def test_halve_drops_gradients_of_another_dtype():
    net = mlp([2, 2])
    net(torch.ones(1, 2)).sum().backward()
    assert all(
        p.grad is None and p.dtype == torch.bfloat16
        for p in halve_(net, torch.bfloat16).parameters()
    )


# ------------------------------------------------------------------------------------------------------ several ranks
def parallel(comm, level, bad_step, wrong=False):
    """Three samples a rank; those of the last rank overflow fp16 in one step."""
    amp = prepare(
        mlp([4, 6, 3], seed=comm.rank), sgd, level, comm=comm, scaler=LossScaler(256.0, comm=comm)
    )
    model, seen = DataParallel(amp.model, comm), []
    params = list(getattr(amp.optimizer, "masters", model.parameters)())
    for step in range(4):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(10 * step + comm.rank))
        if step == bad_step and comm.rank == comm.size - 1:
            x[0, 0] = 1e30
        before = [p.detach().clone() for p in params]
        with amp.autocast:
            loss = F.cross_entropy(model(x), torch.arange(3))
        amp.step(loss)
        seen.append(all(map(torch.equal, before, params)))
    return seen, amp.scaler.skipped, amp.scaler.get_scale(), replicas_equal(comm, params)


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_planted_inf_skips_one_step_on_all_ranks(level, n):
    skips = lambda bad: [step == bad for step in range(4)]
    assert list(World(n).run(parallel, level, 2)) == [(skips(2), 1, 128.0, True)] * n
    assert list(World(n).run(parallel, level, None)) == [(skips(None), 0, 256.0, True)] * n


def test_also_over_processes():
    assert list(launch(parallel, 2, "O2", 1)) == [([False, True, False, False], 1, 128.0, True)] * 2
