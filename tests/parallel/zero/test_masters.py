"""Masters at the owners: 16-bit parameters trained as by serial fp32 copies, updates too small for 16 bits included."""

import pytest
import torch
from torch import nn

from minidist.comm import World, launch
from minidist.parallel.zero import ShardedOptimizer
from minidist.train.amp import LossScaler
from tests.largest import largest
from tests.parallel.cases import made, replicas_equal


def half(dtype):
    return made("hard", 0).to(dtype)


def loss_of(model, step, dtype):
    """Times 1024, so that an n-th of a gradient is no subnormal number of fp16; AdamW does not mind."""
    return 1024 * model(batch(step, dtype)).square().mean()


def batch(step, dtype):
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(step)).to(dtype)


def serial(dtype, steps=10, lr=0.01):
    """Masters as one writes them without ranks; (parameters, masters)."""
    model = half(dtype)
    params = [p for p in model.parameters() if p.requires_grad]
    masters = [p.detach().float() for p in params]
    optimizer = torch.optim.AdamW(masters, lr=lr)
    for step in range(steps):
        model.zero_grad()
        loss_of(model, step, dtype).backward()
        for p, master in zip(params, masters, strict=True):
            master.grad = None if p.grad is None else p.grad.float()
        optimizer.step()
        with torch.no_grad():
            for p, master in zip(params, masters, strict=True):
                p.copy_(master)
    return [p.detach() for p in model.parameters()], masters, optimizer.state_dict()["state"]


def sharded(comm, dtype, stage, steps=10, lr=0.01):
    """Each rank with the whole batch, so that the average of n = 2 or 4 gradients is exactly the serial one."""
    model = half(dtype)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = ShardedOptimizer(
        params, torch.optim.AdamW, comm, stage, torch.float32, bucket_bytes=100, lr=lr
    )
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, step, dtype).backward()
        optimizer.step()
    state = optimizer.state_dict()
    params = [p.detach() for p in model.parameters()]
    return params, state["masters"], state["state"], replicas_equal(comm, params)


def equal(ours, theirs):
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("n", "stage"), [(1, 1), (1, 2), (2, 1), (4, 2)])
def test_serial_bit_for_bit(dtype, n, stage):
    params, masters, states = serial(dtype)
    for found in World(n).run(sharded, dtype, stage):
        assert equal(found[0], params) and equal(found[1].values(), masters) and found[3]
        assert list(found[2]) == list(states)
        for i, state in states.items():
            assert all(torch.equal(found[2][i][name], value) for name, value in state.items())


def test_serial_over_processes():
    params, *_ = serial(torch.float16)
    assert all(equal(found[0], params) for found in launch(sharded, 2, torch.float16, 2))


def test_small_updates_are_kept():
    """Updates of 1e-5 on bf16 weights: without masters most of them never move, with masters they do."""

    def moved(comm, master_dtype):
        weight = nn.Parameter(torch.ones(50, dtype=torch.bfloat16))
        optimizer = ShardedOptimizer([weight], torch.optim.SGD, comm, 1, master_dtype, lr=1e-3)
        for _ in range(300):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
            optimizer.zero_grad()
        return weight.detach().float().mean().item()

    assert World(2).run(moved, None) == [1.0, 1.0]
    assert all(abs(mean - 0.7) < 0.002 for mean in World(2).run(moved, torch.float32))


def resumed(comm, state, params):
    """10 of 20 steps from a state dict."""
    model = half(torch.float16)
    mine = [p for p in model.parameters() if p.requires_grad]
    optimizer = ShardedOptimizer(mine, torch.optim.AdamW, comm, 2, torch.float32, lr=0.01)
    with torch.no_grad():
        for p, value in zip(model.parameters(), params, strict=True):
            p.copy_(value)
    optimizer.load_state_dict(state)
    for step in range(10, 20):
        optimizer.zero_grad()
        loss_of(model, step, torch.float16).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def saved(comm):
    model = half(torch.float16)
    mine = [p for p in model.parameters() if p.requires_grad]
    optimizer = ShardedOptimizer(mine, torch.optim.AdamW, comm, 1, torch.float32, lr=0.01)
    for step in range(10):
        optimizer.zero_grad()
        loss_of(model, step, torch.float16).backward()
        optimizer.step()
    return optimizer.state_dict(), [p.detach() for p in model.parameters()]


def test_masters_are_saved():
    """On another number of ranks it goes on bit for bit; from a state dict without masters it does not."""
    state, params = World(4).run(saved)[0]
    expected = serial(torch.float16, 20)[0]
    assert all(equal(found, expected) for found in World(2).run(resumed, state, params))
    without = {key: value for key, value in state.items() if key != "masters"}
    assert not equal(World(2).run(resumed, without, params)[0], expected)


def scaled(comm, stage, bad):
    """Ten steps with a loss scaler; in step `bad`, an inf on the last rank."""
    model = half(torch.float16)
    mine = [p for p in model.parameters() if p.requires_grad]
    optimizer = ShardedOptimizer(mine, torch.optim.AdamW, comm, stage, torch.float32, lr=0.01)
    scaler = LossScaler(init=2.0**10, comm=comm)
    before, stood = None, []
    for step in range(10):
        optimizer.zero_grad()
        before = [p.detach().clone() for p in mine]
        x = batch(step, torch.float16)
        if step == bad and comm.rank == comm.size - 1:
            x = x * float("inf")
        scaler.scale(model(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        stood += [step] * equal([p.detach() for p in mine], before)
    return stood, [p.detach() for p in mine], scaler.get_scale()


@pytest.mark.parametrize("stage", [1, 2])
def test_a_loss_scaler_steps_all_ranks_or_none(stage):
    """It unscales the masters' gradients, of which some ranks have none here."""
    plain, _, _ = serial(torch.float16)
    for n in (2, 12):
        results = World(n).run(scaled, stage, 4)
        assert all(stood == [4] and scale == 2.0**9 for stood, _, scale in results)
        assert all(equal(params, results[0][1]) for _, params, _ in results)
    for _, params, _ in World(2).run(scaled, stage, None):
        expected = [
            p
            for p, q in zip(plain, half(torch.float16).parameters(), strict=True)
            if q.requires_grad
        ]
        assert (
            largest(
                (a.float() - b.float()).abs().max().item()
                for a, b in zip(params, expected, strict=True)
            )
            < 2e-3
        )


def test_a_dtype_without_fractions_is_refused():
    def program(comm):
        ShardedOptimizer(
            nn.Linear(2, 2).parameters(), torch.optim.SGD, comm, master_dtype=torch.int32
        )

    with pytest.raises(ValueError, match=r"floating-point dtype, not torch\.int32"):
        World(1).run(program)
