"""16-bit compute over fp32 shards."""

import math

import pytest
import torch
from torch import nn

from minidist.comm import World, launch
from minidist.models import mlp
from minidist.parallel.zero.fully import FullySharded
from minidist.train.amp import LossScaler, prepare
from tests.parallel.zero.fully.cases import Block, far, rows, tower

X = torch.randn(12, 5, generator=torch.Generator().manual_seed(2))


def sharded(comm, dtype):
    module = tower(seed=comm.rank).float()
    module.layers[1].requires_grad_(False)
    module.register_buffer("steps", torch.zeros((), dtype=torch.int64))
    model = FullySharded(module, comm, dtype, blocks=Block)
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(5):
        opt.zero_grad()
        out = model(rows(comm, X))
        assert out.dtype == dtype
        (256 * out.float().square().mean()).backward()
        assert {p.grad.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
        for p in model.parameters():
            if p.requires_grad:
                p.grad.div_(256)
        opt.step()
    return model.full_state_dict()


def serial(dtype):
    """fp32 masters, copied to 16 bits before each forward, by hand."""
    low, high = tower().to(dtype), tower().float()
    opt = torch.optim.Adam(high.parameters(), lr=0.01)
    high.layers[1].requires_grad_(False)
    low.layers[1].requires_grad_(False)
    for _ in range(5):
        with torch.no_grad():
            for a, b in zip(low.parameters(), high.parameters(), strict=True):
                a.copy_(b)
                a.grad = None
        (256 * low(X.to(dtype)).float().square().mean()).backward()
        for a, b in zip(low.parameters(), high.parameters(), strict=True):
            b.grad = None if a.grad is None else a.grad.float().div_(256)
        opt.step()
    return high.state_dict() | {"steps": torch.zeros((), dtype=torch.int64)}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_masters_by_hand(dtype):
    assert far(World(1).run(sharded, dtype)[0], serial(dtype)) == 0
    for run in (World(3).run, lambda *args: launch(args[0], 3, *args[1:])):
        first, *others = run(sharded, dtype)
        assert all(far(state, first) == 0 for state in others)
        assert {value.dtype for value in first.values()} == {torch.float32, torch.int64}
        assert far(first, serial(dtype)) < 0.02  # Adam's five steps of 0.01, sums in 16 bits


def test_what_travels_is_16_bits():
    def program(comm):
        sharded_once = FullySharded(nn.Linear(30, 30), comm, torch.bfloat16)
        sharded_once(torch.ones(1, 30)).sum().backward()

    world = World(2)
    world.run(program)
    assert world.trace.bytes_sent() == 4 * 930 // 2 + 3 * 2 * 930


def test_integers_stay_as_they_are():
    def program(comm):
        model = FullySharded(nn.Embedding(5, 4), comm, torch.float16)
        model(torch.tensor([1, 4, 4])).sum().backward()
        return model.module.weight.grad

    grads = torch.cat(World(2).run(program))
    assert grads.view(5, 4)[:, 0].tolist() == [0.0, 1.0, 0.0, 0.0, 2.0]


def from_halves():
    """fp32, with values that fp16 has, as O2's masters start from them."""
    return mlp([5, 7, 6, 3]).half().float()


def adamw(params):
    return torch.optim.AdamW(params, lr=0.02)


def at_o2(bad_step):
    """Losses of six steps on one rank; in one of them is an inf."""
    amp, losses = prepare(from_halves(), adamw, "O2", scaler=LossScaler(2.0**12)), []
    for step in range(6):
        loss = amp.model(X).square().mean()
        losses.append(loss.item())
        amp.step(loss * (math.inf if step == bad_step else 1))
    return losses


def scaled(comm, bad_step, agree=True):
    """The same, each rank with the whole batch; the inf in one parameter's gradient, on the last rank."""
    model = FullySharded(from_halves(), comm, torch.float16, blocks=nn.Linear)
    optimizer, scaler = adamw(model.parameters()), LossScaler(2.0**12, comm=comm if agree else None)
    losses, skips = [], []
    for step in range(6):
        loss = model(X).float().square().mean()
        losses.append(loss.item())
        bad = step == bad_step and comm.rank == comm.size - 1
        hook = (
            model.units[0].held[-1].whole.register_hook(lambda grad: grad * math.inf)
            if bad
            else None
        )
        scaler.scale(loss).backward()
        if bad:
            hook.remove()
        before = scaler.skipped
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        skips.append(scaler.skipped > before)
    return losses, skips, scaler.get_scale()


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("bad_step", [None, 2])
def test_a_loss_scaler_skips_on_all_ranks_and_losses_are_those_of_o2(n, bad_step):
    expected = at_o2(bad_step)
    assert expected == sorted(expected, reverse=True) and expected[-1] < 0.8 * expected[0]
    for losses, skips, scale in World(n).run(scaled, bad_step):
        assert losses == expected and skips == [step == bad_step for step in range(6)]
        assert scale == 2.0 ** (12 - (bad_step is not None))


def test_ranks_that_do_not_agree_step_apart():
    """The inf arrives in one rank's shard alone."""
    assert [sum(skips) for _, skips, _ in World(2).run(scaled, 2, False)] == [0, 1]
