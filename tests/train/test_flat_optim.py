"""Flat optimizers against torch.optim's, step by step."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

from minidist.comm import World
from minidist.parallel.data import DataParallel
from minidist.study.meter import measure
from minidist.train.flat_optim import FlatAdamW

OPTIONS = [dict(lr=0.01), dict(lr=0.01, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.2)]
EACH = pytest.mark.parametrize("how", OPTIONS)


def net(seed=0, dtype=torch.float64):
    random = torch.Generator().manual_seed(seed)
    made = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 6), nn.Linear(6, 3, bias=False)).to(dtype)
    for p in made.parameters():
        p.data = torch.randn(p.shape, generator=random, dtype=torch.float64).to(dtype)
    return made


def backward(model, step, skip=True):
    """Gradients of a step; in some steps the middle layer has none, and the first's bias is frozen in some."""
    for i, p in enumerate(model.parameters()):
        if not (
            skip
            and (step % 3 == 1 and i in (2, 3) or step % 4 == 2 and i == 1 or step < 2 and i == 4)
        ):
            random = torch.Generator().manual_seed(100 * step + i)
            p.grad = torch.randn(p.shape, generator=random, dtype=torch.float64).to(p.dtype)


def assert_equal(a, b, bound=1e-12):
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=bound, atol=bound)


@EACH
def test_twenty_steps(how):
    a, b = net(), net()
    mine = FlatAdamW(a.parameters(), **how)
    other = torch.optim.AdamW(b.parameters(), **how)
    for step in range(20):
        for model, optimizer in ((a, mine), (b, other)):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
        assert_equal(a, b)


@EACH
def test_gradients_that_stay_in_the_buffer(how):
    a, b = net(), net()
    mine = FlatAdamW(a.parameters(), **how)
    other = torch.optim.AdamW(b.parameters(), **how)
    for step in range(4):
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        for model, optimizer in ((a, mine), (b, other)):
            optimizer.zero_grad(set_to_none=False)
            (model(x) if step != 1 else model[1](model[0](x))).tanh().sum().backward()
            optimizer.step()
        assert_equal(a, b)
    assert len({p.grad.untyped_storage().data_ptr() for p in a.parameters()}) == 1


@EACH
def test_groups_schedule_and_a_late_group(how):
    a, b = net(), net()
    optimizers = []
    for model, cls in ((a, FlatAdamW), (b, torch.optim.AdamW)):
        first, second, _ = model
        optimizers.append(
            cls([dict(params=first.parameters(), lr=0.03), dict(params=[second.weight])], **how)
        )
    schedules = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) for optimizer in optimizers]
    for step in range(5):
        for model, optimizer, schedule in zip((a, b), optimizers, schedules, strict=True):
            if step == 2:
                optimizer.add_param_group(
                    dict(params=model[2].parameters(), lr=0.1, weight_decay=0.5)
                )
            backward(model, step)
            optimizer.step()
            schedule.step()
        assert_equal(a, b)


@EACH
def test_each_loads_the_others_state(how):
    """After three steps states change places; three more, and all are equal."""
    models, optimizers = [net(), net()], []
    for model, cls in zip(models, (FlatAdamW, torch.optim.AdamW), strict=True):
        optimizers.append(cls(model.parameters(), **how))
        for step in range(3):
            backward(model, step)
            optimizers[-1].step()
    swapped = [net(), net()]
    for cls, model, source, other in zip(
        (FlatAdamW, torch.optim.AdamW), swapped, optimizers[::-1], models[::-1], strict=True
    ):
        model.load_state_dict(other.state_dict())
        optimizer = cls(model.parameters(), **how)
        optimizer.load_state_dict(source.state_dict())
        for step in range(3, 6):
            backward(model, step)
            optimizer.step()
    assert_equal(*swapped)


@EACH
def test_a_copy_goes_on(how):
    model, other = net(), net()
    optimizer = FlatAdamW(model.parameters(), **how)
    reference = torch.optim.AdamW(other.parameters(), **how)
    for step in range(2):
        backward(model, step)
        backward(other, step)
        optimizer.step()
        reference.step()
    model, optimizer = copy.deepcopy((model, optimizer))
    optimizer.zero_grad()
    reference.zero_grad()
    backward(model, 2)
    backward(other, 2)
    optimizer.step()
    reference.step()
    assert_equal(model, other)


@EACH
@pytest.mark.parametrize("moved", [(0, 1, 2, 3, 4), (0,), (2,), (4,)])
def test_parameters_that_got_other_memory(how, moved):
    a, b = net(), net()
    mine = FlatAdamW(a.parameters(), **how)
    other = torch.optim.AdamW(b.parameters(), **how)
    for step in range(4):
        if step == 2:
            params = list(a.parameters())
            for i in moved:
                params[i].data = params[i].data.clone()
        backward(a, step)
        backward(b, step)
        mine.step()
        other.step()
    assert_equal(a, b)


@EACH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_worked_on_in_float32(how, dtype):
    model, wide = net(dtype=dtype), net(dtype=dtype).float()
    backward(model, 0, skip=False)
    for p, q in zip(wide.parameters(), model.parameters(), strict=True):
        p.grad = q.grad.float()
    FlatAdamW(model.parameters(), **how).step()
    torch.optim.AdamW(wide.parameters(), **how).step()
    for p, q in zip(model.parameters(), wide.parameters(), strict=True):
        torch.testing.assert_close(p, q.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_two_dtypes_and_a_closure():
    model = net()
    model[1].float()
    optimizer = FlatAdamW(model.parameters())
    other = copy.deepcopy(model)
    backward(other, 5)
    torch.optim.AdamW(other.parameters()).step()

    def closure():
        assert torch.is_grad_enabled()
        backward(model, 5)
        return 7.0

    assert optimizer.step(closure) == 7.0
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def profile_of(make, device, **zero):
    model = net(dtype=torch.float32).to(device)
    optimizer = make(model.parameters())
    for _ in range(2):
        optimizer.zero_grad(**zero)
        for p in model.parameters():
            p.grad = torch.ones_like(p) if p.grad is None else p.grad.add_(1)
        profile = measure(optimizer.step)
    return profile, 4 * sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_launches_bytes_and_memory(device):
    profile, psi = profile_of(FlatAdamW, device)
    assert (profile.calls, profile.bytes_moved) == (2, 9 * psi)
    assert profile.peak == 5 * psi and profile.at_peak["optimizer states"] == 2 * psi
    profile, psi = profile_of(FlatAdamW, device, set_to_none=False)
    assert (profile.calls, profile.bytes_moved) == (1, 7 * psi)
    assert profile.peak == 4 * psi


def test_torchs_loop_launches_more():
    for how, calls in ((dict(foreach=False), 8 * 5), (dict(foreach=True), 8)):
        profile, psi = profile_of(partial(torch.optim.AdamW, **how), "meta")
        assert (profile.calls, profile.bytes_moved) == (calls, 21 * psi)


def test_wrong_options_are_refused():
    p = [nn.Parameter(torch.ones(3))]
    for how in (dict(lr=-1), dict(betas=(0.9, 1.0)), dict(eps=-1), dict(weight_decay=-1)):
        with pytest.raises(ValueError, match=r"-1|1\.0"):
            FlatAdamW(p, **how)
    optimizer, other = FlatAdamW(p), torch.optim.AdamW(p, amsgrad=True)
    optimizer.load_state_dict(other.state_dict())
    p[0].grad = torch.ones(3)
    with pytest.raises(ValueError, match="amsgrad"):
        optimizer.step()
    p[0].grad = torch.ones(3).to_sparse()
    with pytest.raises(ValueError, match="sparse"):
        FlatAdamW(p).step()


def loss(model, step=0):
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    return model(x.to(model[0].weight.dtype)).tanh().square().sum()


ZEROS = {
    "by the optimizer": lambda model, optimizer: optimizer.zero_grad(),
    "by the model": lambda model, optimizer: model.zero_grad(),
}


@pytest.mark.parametrize("zero", ZEROS)
@pytest.mark.parametrize(
    "hold", [lambda grad: grad, lambda grad: grad.view(-1)[1:], lambda grad: grad.detach()]
)
def test_gradients_that_somebody_holds_stay_as_they_are(zero, hold):
    """All of them, the first one's or the last one's."""
    for which in (slice(None), slice(1), slice(-1, None)):
        model = net()
        optimizer = FlatAdamW(model.parameters(), lr=0.1)
        kept = []
        for step in range(3):
            loss(model, step).backward()
            optimizer.step()
            held = [hold(p.grad) for p in list(model.parameters())[which]]
            kept += zip(held, copy.deepcopy(held), strict=True)
            ZEROS[zero](model, optimizer)
        assert all(torch.equal(x, was) for x, was in kept)


def test_a_gradient_that_left_the_buffer():
    """Held, and made anew outside: the held one stays, and the step takes the new one."""
    model, other = net(), net()
    optimizer, reference = (
        FlatAdamW(model.parameters(), lr=0.1),
        torch.optim.AdamW(other.parameters(), lr=0.1),
    )
    for m, o in ((model, optimizer), (other, reference)):
        loss(m).backward()
        o.zero_grad(set_to_none=False)
        loss(m, 1).backward()
        first = next(m.parameters())
        held, first.grad = first.grad, None
        before = held.clone()
        loss(m, 2).backward()
        o.step()
        assert torch.equal(held, before)
    assert_equal(model, other)


def test_frozen_thawed_without_gradients_and_another_optimizer():
    a, b = net(), net()
    optimizers = [FlatAdamW(a.parameters(), lr=0.01), torch.optim.AdamW(b.parameters(), lr=0.01)]
    for step in range(6):
        if step == 4:
            optimizers = [
                FlatAdamW(a.parameters(), lr=0.1),
                torch.optim.AdamW(b.parameters(), lr=0.1),
            ]
        for model, optimizer in zip((a, b), optimizers, strict=True):
            model[1].requires_grad_(step > 1)
            optimizer.zero_grad()
            (loss(model, step) if step != 3 else model[0](torch.ones(5).double()).sum()).backward()
            optimizer.step()
        assert_equal(a, b)


def trained(comm, flat, after, stay):
    """With a DataParallel around, made before or after the optimizer."""
    model = net(comm.rank)
    kind = FlatAdamW if flat else torch.optim.AdamW
    optimizer = kind(model.parameters(), lr=0.01) if not after else None
    around = DataParallel(model, comm)
    optimizer = optimizer or kind(model.parameters(), lr=0.01)
    for step in range(4):
        optimizer.zero_grad(set_to_none=not stay)
        for k in range(2):
            around(
                torch.randn(
                    4, 5, generator=torch.Generator().manual_seed(8 * step + 2 * comm.rank + k)
                ).double()
            ).square().sum().backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("stay", [False, True])
def test_beside_the_hooks_of_data_parallel(after, stay):
    expected = World(2).run(trained, False, after, stay)[0]
    for params in World(2).run(trained, True, after, stay):
        for p, q in zip(params, expected, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("none", "most"), [(True, 40), (False, 32)])
def test_memory_of_a_backward_and_a_step(none, most):
    """Beside the parameters one of each gradient, and at the step a copy of them, unless they are in the buffer."""
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(8)))
    optimizer, each = FlatAdamW(model.parameters(), lr=0.1), 4 * 64 * 64
    for _ in range(3):
        optimizer.zero_grad(set_to_none=none)
        profile = measure(lambda: (model(torch.ones(1, 64)).sum().backward(), optimizer.step()))
    assert most * each <= profile.peak < (most + 1.5) * each
