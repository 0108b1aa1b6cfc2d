"""Masters beside the same optimizer on fp32 parameters, with any optimizer, saved and loaded, and in parallel."""

import copy

import pytest
import torch
from torch import nn

from minidist.comm import World
from minidist.models import mlp
from minidist.parallel.data import DataParallel
from minidist.train.amp import LossScaler, Masters
from tests.parallel.cases import replicas_equal

HALVES = [torch.float16, torch.bfloat16]


class Signs(torch.optim.Optimizer):
    """A user's own: signs of the gradients, with a state, and an option that it changes itself."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, dict(lr=lr, calls=0))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["calls"] += 1
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["last"] = p.grad.sign()
                    p.sub_(group["lr"] * self.state[p]["last"])


OPTIMIZERS = {
    "SGD": lambda params: torch.optim.SGD(params, lr=1e-3, momentum=0.9),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=1e-4),
    "fused Adam": lambda params: torch.optim.Adam(params, lr=1e-4, fused=True),
    "Signs": Signs,
}


def net(dtype=torch.float32):
    return mlp([4, 6, 3], dtype=dtype)


def gradients(step, shapes):
    random = torch.Generator().manual_seed(step)
    return [torch.randint(-9, 10, shape, generator=random) / 256 for shape in shapes]


def stepped(params, optimizer, steps, scheduler=None):
    """Step with the gradients of each step, numbers that all dtypes hold."""
    for step in range(steps):
        grads = gradients(step, [p.shape for p in params])
        for p, g in zip(params, grads, strict=True):
            p.grad = g.to(p.dtype) if step % 3 or p.dim() > 1 else None  # at times there is none
        optimizer.step()
        if scheduler:
            scheduler.step()


def decayed(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", HALVES)
def test_masters_are_what_fp32_would_be(name, dtype):
    low, make = net(dtype), OPTIMIZERS[name]
    params = [nn.Parameter(p.detach().float()) for p in low.parameters()]
    serial = make(params)
    optimizer = Masters(low.parameters(), make)
    stepped(params, serial, 7, decayed(serial))
    stepped(list(low.parameters()), optimizer, 7, decayed(optimizer))
    for p, m, expected in zip(low.parameters(), optimizer.masters(), params, strict=True):
        assert m.dtype == torch.float32 and p.dtype == dtype and torch.equal(p, m.to(dtype))
        assert torch.equal(m, expected)
    ours, theirs = (
        {k: v for k, v in o.param_groups[0].items() if k != "params"} for o in (optimizer, serial)
    )
    assert ours == theirs


def test_small_updates_add_up():
    """2⁻¹³ of the weight: lost in fp16 each time, and 64 of them are not."""
    lone, kept = (nn.Parameter(torch.ones(1, dtype=torch.float16)) for _ in range(2))
    optimizers = torch.optim.SGD([lone], lr=2.0**-13), Masters([kept], torch.optim.SGD, lr=2.0**-13)
    for _ in range(64):
        for p, optimizer in zip((lone, kept), optimizers, strict=True):
            p.grad = torch.full_like(p, -1)
            optimizer.step()
    assert lone.item() == 1 and kept.item() == 1 + 2.0**-7


def test_wide_parameters_are_stepped_as_they_are():
    norm, p = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, dtype=torch.float16))
    optimizer = Masters([norm, p], torch.optim.SGD, lr=0.25)
    assert optimizer.masters()[0] is norm
    for x in (norm, p):
        x.grad = torch.ones_like(x)
    optimizer.step()
    assert norm.tolist() == p.tolist() == [0.75, 0.75]


def test_gradients_are_there_in_fp32_for_all_to_see():
    low = net(torch.float16)
    optimizer = Masters(low.parameters(), torch.optim.SGD, lr=1.0)
    low(torch.ones(1, 4, dtype=torch.float16)).sum().backward()
    before = [p.grad.clone() for p in low.parameters()]
    found, masters = optimizer.gradients(), [m.clone() for m in optimizer.masters()]
    assert found == optimizer.gradients() and all(
        p.grad is g for p, g in zip(low.parameters(), found, strict=True)
    )
    assert all(
        g.dtype == torch.float32 and torch.equal(g, b.float())
        for g, b in zip(found, before, strict=True)
    )
    norm = nn.utils.clip_grad_norm_(low.parameters(), 0.5)
    optimizer.step()
    moved = torch.cat(
        [(a - b).flatten() for a, b in zip(masters, optimizer.masters(), strict=True)]
    )
    assert all(m.grad is None for m in optimizer.masters())
    assert norm > 1 and moved.norm().item() == pytest.approx(0.5, rel=1e-5)


def test_after_gradients_a_backward_starts_afresh():
    """Skipped or not: zeroed gradients of either kind, and accumulation on top of fp32 ones."""
    p = nn.Parameter(torch.ones(1, dtype=torch.float16))
    optimizer = Masters([p], torch.optim.SGD, lr=0.0)
    for to_none in (True, False):
        (3 * p).sum().backward()
        optimizer.gradients()
        optimizer.zero_grad(set_to_none=to_none)
        (2 * p).sum().backward()
        assert optimizer.gradients()[0].item() == 2
        (2 * p).sum().backward()
        assert optimizer.gradients()[0].item() == 4
        optimizer.zero_grad()


def test_groups_and_options():
    first, second = (nn.Parameter(torch.ones(1, dtype=torch.float16)) for _ in range(2))
    optimizer = Masters([{"params": [first], "lr": 0.5}], torch.optim.SGD, lr=0.25)
    optimizer.add_param_group({"params": [second]})
    assert [g["lr"] for g in optimizer.param_groups] == [0.5, 0.25] and optimizer.defaults[
        "lr"
    ] == 0.25
    optimizer.param_groups[1]["lr"] = 0.125
    first.grad, second.grad = torch.ones_like(first), torch.ones_like(second)
    optimizer.step()
    assert (first.item(), second.item()) == (0.5, 0.875)
    signs = Masters([first], Signs)
    signs.step()
    assert signs.param_groups[0]["calls"] == 1
    with pytest.raises(ValueError, match="some parameters appear in more than one"):
        optimizer.add_param_group({"params": [first]})


def test_a_closure():
    p = nn.Parameter(torch.ones(1, dtype=torch.float16))
    optimizer = Masters([p], torch.optim.SGD, lr=0.5)

    def closure():
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 1 and p.item() == 0


def test_saved_and_loaded():
    """Also to and from the plain optimizer of the class."""
    low = net(torch.float16)
    optimizer = Masters(low.parameters(), torch.optim.AdamW, lr=1e-3)
    stepped(list(low.parameters()), optimizer, 5)
    saved = copy.deepcopy(optimizer.state_dict())

    again = mlp([4, 6, 3], dtype=torch.float16, seed=9)
    resumed = Masters(again.parameters(), torch.optim.AdamW, lr=9.0)
    resumed.load_state_dict(copy.deepcopy(saved))  # as if read from a file: torch does not copy
    params = [nn.Parameter(m.clone()) for m in saved["masters"]]
    serial = torch.optim.AdamW(params)
    serial.load_state_dict(copy.deepcopy(saved))
    assert resumed.param_groups[0]["lr"] == serial.param_groups[0]["lr"] == 1e-3
    third = net(torch.float16)
    back = Masters(third.parameters(), torch.optim.AdamW)
    back.load_masters(params)
    back.load_state_dict(copy.deepcopy(serial.state_dict()))

    for stepping, module in ((optimizer, low), (resumed, again)):
        stepped(list(module.parameters()), stepping, 3)
    stepped(params, serial, 3)
    stepped(list(third.parameters()), back, 3)
    for a, b, c, d in zip(
        optimizer.masters(), resumed.masters(), params, back.masters(), strict=True
    ):
        assert torch.equal(a, b) and torch.equal(a, c) and torch.equal(a, d)


def test_loaded_masters_are_rounded_into_the_parameters():
    p = nn.Parameter(torch.ones(2, dtype=torch.float16))
    optimizer = Masters([p], torch.optim.SGD, lr=1.0)
    saved = optimizer.state_dict() | {"masters": [torch.tensor([2 + 2.0**-13, 3.0])]}
    optimizer.load_state_dict(saved)
    assert p.tolist() == [2, 3] and torch.equal(optimizer.masters()[0], saved["masters"][0])
    optimizer.load_masters([torch.tensor([4.0, 5.0])])
    assert p.tolist() == optimizer.masters()[0].tolist() == [4, 5]


def test_a_copy_works_alone():
    low = net(torch.float16)
    optimizer = Masters(low.parameters(), torch.optim.AdamW, lr=1e-3)
    stepped(list(low.parameters()), optimizer, 2)
    twin, other = copy.deepcopy((low, optimizer))
    for module, stepping in ((low, optimizer), (twin, other)):
        stepped(list(module.parameters()), stepping, 2)
    assert all(map(torch.equal, optimizer.masters(), other.masters()))


def test_what_others_write_is_followed():
    p = nn.Parameter(torch.tensor([1.0, 1.0], dtype=torch.float16))
    optimizer = Masters([p], torch.optim.SGD, lr=2.0**-13)
    p.grad = -torch.ones_like(p)
    optimizer.step()
    with torch.no_grad():
        p[1] = 3.0
    optimizer.step()
    assert optimizer.masters()[0].tolist() == [1 + 2.0**-12, 3 + 2.0**-13]


def test_another_number_of_masters():
    with pytest.raises(ValueError, match="1 values were given for 4 masters"):
        Masters(net(torch.float16).parameters(), Signs).load_masters([torch.ones(1)])


def parallel(comm, first):
    """fp16 gradients travel; masters stay equal on all ranks, whether made before or after the broadcast."""
    torch.manual_seed(comm.rank)
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).half()
    if first == "masters":
        optimizer, model = (
            Masters(module.parameters(), torch.optim.AdamW, lr=1e-3),
            DataParallel(module, comm),
        )
    else:
        model, optimizer = (
            DataParallel(module, comm),
            Masters(module.parameters(), torch.optim.AdamW, lr=1e-3),
        )
    scaler = LossScaler(init=256.0, comm=comm)
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(5))[comm.rank :: comm.size].half()
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale(model(x).float().square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    same = replicas_equal(comm, [*optimizer.masters(), *module.parameters()])
    return same, [m.clone() for m in optimizer.masters()]


@pytest.mark.parametrize("first", ["masters", "parallel"])
def test_with_data_parallel(first):
    serial = World(1).run(parallel, first)[0][1]
    run = World(2).run(parallel, first)
    assert [same for same, _ in run] == [True, True]
    for ours, expected in zip(run[0][1], serial, strict=True):
        # three steps of 1e-3, with gradients rounded to 11 bits
        assert (ours - expected).abs().max() < 2e-4


def on_meta(comm):
    module = mlp([4, 6, 3], dtype=torch.float16, device="meta")
    optimizer, scaler = (
        Masters(module.parameters(), torch.optim.AdamW, lr=1e-3),
        LossScaler(comm=comm),
    )
    scaler.scale(module(torch.empty(2, 4, dtype=torch.float16, device="meta")).sum()).backward()
    scaler.step(optimizer)
    return [m.dtype for m in optimizer.masters()]


def test_on_meta():
    assert World(1, device="meta").run(on_meta)[0] == [torch.float32] * 4
