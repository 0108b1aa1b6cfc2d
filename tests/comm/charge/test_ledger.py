"""Live memory by category: against the CPU allocator's own record, and case by case."""

import copy
import gc
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from minidist.comm.charge.charge import ModelledHost
from minidist.comm.trace.timeline import CATEGORIES
from minidist.study.meter import measure
from minidist.train.amp import Masters
from tests.comm.nets import Training, allocated, convnet, mlp, transformer

NETS = {
    "mlp": mlp,
    "convnet": convnet,
    "transformer": transformer,
    "fused": lambda: transformer("call"),
}


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("net", NETS)
def test_a_training_step_against_the_allocator(net, optimizer):
    truth, ours, meta = (
        Training(NETS[net], optimizer, device) for device in ("cpu", "cpu", "meta")
    )
    for _ in range(2):  # in the first step the optimizer's states are born
        before = sum(truth.states().values())
        peak, end = (before + more for more in allocated(truth.step))
        profile = measure(ours.step)
        assert abs(profile.peak / peak - 1) < 1e-3
        assert profile.timeline.total[-1] == end == sum(truth.states().values())
        on_meta = measure(meta.step)
        if net != "fused":  # which PyTorch writes out for meta tensors
            assert abs(on_meta.peak / peak - 1) < 1e-3
        for run, training in ((profile, ours), (on_meta, meta)):
            states, left = training.states(), run.timeline.at(float("inf"))
            batch = states.pop("batch")
            assert {name: left[name] for name in states} == states
            assert left["activations"] + left["other"] == batch


def test_the_meter_itself_keeps_nothing_alive():
    plain, metered = (Training(convnet, "momentum") for _ in range(2))
    assert allocated(plain.step) == allocated(lambda: measure(metered.step))


def test_each_storage_is_counted_once():
    def program():
        x = torch.zeros(1000)
        views = [x.view(10, 100), x[5:], x.detach(), *x.split(100), x.expand(5, 1000)]
        del x
        assert views.pop().shape == (5, 1000)
        return views[1].sum() if views else None  # it begins where no other does

    timeline = measure(program).timeline
    assert timeline.peak == 4004 and timeline.total.tolist()[-1] == 4


def at_peak(fn, *args):
    return {name: nbytes for name, nbytes in measure(fn, *args).at_peak.items() if nbytes}


class Own(torch.optim.Optimizer):
    """An optimizer of one's own: a copy of the weights in float64, and a list in its state."""

    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state.setdefault("nested", {"list": [torch.zeros_like(p)]})
            state.setdefault("master", p.double()).sub_(p.grad)
            p.copy_(state["master"])


def test_what_an_optimizer_of_ones_own_keeps_in_its_state():
    net = nn.Linear(10, 10)
    optimizer = Own(net.parameters())

    def step():
        net(torch.ones(2, 10)).sum().backward()
        optimizer.step()

    assert measure(step).timeline.at(1.0)["optimizer states"] == 110 * (4 + 8)
    assert at_peak(lambda given: None, [{"deep": (optimizer,)}])["optimizer states"] == 110 * 12


def test_plain_tensors_that_an_optimizer_steps_are_parameters():
    w = torch.ones(10, 10, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)

    def step():
        optimizer.zero_grad()
        (torch.ones(3, 10) @ w).sum().backward()
        optimizer.step()

    assert measure(step).timeline.at(1.0) == dict.fromkeys(CATEGORIES, 0) | {
        "parameters": 400,
        "gradients": 400,
        "optimizer states": 400,
    }
    # fp32 copies of the weights, say: no gradient of their own
    copies = torch.optim.SGD([torch.ones(10)], lr=0.1)
    assert at_peak(lambda given: None, copies) == {"optimizer states": 40}


def test_masters_that_were_made_before_are_states():
    net, x = nn.Linear(10, 10, bias=False).half(), torch.ones(3, 10, dtype=torch.half)
    optimizer = Masters(net.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    assert at_peak(lambda given: None, optimizer) == {"parameters": 200, "optimizer states": 400}
    net(x).sum().backward()
    optimizer.step()
    net.zero_grad()
    for program in (lambda given: None, lambda given: given.step()):
        live = measure(program, optimizer).timeline.at(1.0)
        assert live["parameters"] == 200 and live["optimizer states"] == 400 + 400, program


@pytest.mark.parametrize("reentrant", [None, True, False])
def test_checkpointing_keeps_the_inputs_and_recomputes_the_rest(reentrant):
    blocks = [nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32)) for _ in range(6)]
    given = torch.ones(64, 32)

    def step():
        x = given.clone().requires_grad_()
        for block in blocks:
            x = block(x) if reentrant is None else checkpoint(block, x, use_reentrant=reentrant)
        x.sum().backward()

    profile = measure(step)
    kept, inside = 64 * 32 * 4, 64 * 128 * 4  # a block's input; its tanh
    most = profile.timeline.live["activations"].max()
    # Backward reads a block's input and its tanh, and the ones that it starts from are a number.
    assert most == (6 * (kept + inside) if reentrant is None else 6 * kept + inside) + 4
    assert (profile.by_phase["backward"].flops > 2 * profile.by_phase["forward"].flops) is (
        reentrant is not None
    )


def test_activations_are_what_backward_reads():
    w, x = nn.Parameter(torch.ones(10, 10)), torch.ones(5, 10)
    live = measure(lambda: (x @ w).exp().sum().backward()).timeline.live
    # x, the exponentials, and the 1 that backward starts from
    assert live["activations"].max() == 200 + 200 + 4
    assert live["activations"][0] == 200  # the batch, from the start

    w.grad = None

    def unused():
        y = (x @ w).exp().sum()
        del y

    assert at_peak(unused) == {"parameters": 400, "other": 600}  # nobody ever read them


def test_what_a_function_saves_is_an_activation():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x + 0)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * ctx.saved_tensors[0] * grad

    x = torch.ones(100, requires_grad=True)
    timeline = measure(lambda: Square.apply(x).sum().backward()).timeline
    assert timeline.live["activations"].max() == 400 + 4
    assert timeline.live["gradients"].max() == 0  # of an input: no state of the model


def test_a_buffer_that_backward_reads_is_a_buffer():
    net = nn.Linear(10, 10)
    net.register_buffer("scale", torch.ones(10))
    assert (
        measure(lambda: (net(torch.ones(3, 10)) * net.scale).sum().backward()).at_peak["buffers"]
        == 40
    )


@pytest.mark.parametrize("shared", [False, True])
def test_gradients_that_autograd_steals_or_copies(shared):
    w, v = nn.Parameter(torch.ones(50)), nn.Parameter(torch.ones(50))
    # w + v: one output gradient for both
    loss = lambda: ((w + v) if shared else (2 * w + 3 * v)).exp().sum()
    profile = measure(lambda: loss().backward())
    assert profile.timeline.at(1.0)["gradients"] == 400
    assert w.grad.untyped_storage().data_ptr() != v.grad.untyped_storage().data_ptr()
    # in place, the second time
    assert measure(lambda: loss().backward()).timeline.live["gradients"].max() == 400


def test_a_gradient_that_a_hook_takes_away():
    w, taken = nn.Parameter(torch.ones(50)), []

    def take(p):
        taken.append(p.grad)
        p.grad = None
        torch.zeros(50).sum()  # of the same shape, and no gradient

    handle = w.register_post_accumulate_grad_hook(take)
    timeline = measure(lambda: (2 * w).exp().sum().backward()).timeline
    handle.remove()
    assert timeline.live["gradients"].max() == timeline.at(1.0)["gradients"] == 200


def test_gradients_that_the_program_makes():
    w = nn.Parameter(torch.ones(50))

    def program():
        w.grad = torch.zeros(50)
        with torch.no_grad():
            w.sub_(w.grad)

    assert measure(program).timeline.at(1.0)["gradients"] == 200


def test_gradients_that_are_views_of_a_bucket():
    net, bucket = nn.Linear(10, 10), torch.zeros(110 + 40)
    net.weight.grad, net.bias.grad = bucket[:100].view(10, 10), bucket[100:110]
    assert (
        measure(lambda: net(torch.ones(2, 10)).sum().backward()).timeline.at(1.0)["gradients"]
        == 600
    )


def test_arrays_of_numpy_are_held_while_they_are_used():
    data = np.ones((8, 1000), dtype=np.float32)

    def program():
        for row in data:
            torch.from_numpy(row.copy()).sum()

    assert measure(program).peak <= 2 * 4000 + 8


def test_what_was_there_before_is_there_from_the_start():
    weight, late = torch.ones(1000), torch.ones(500)

    def program():
        x = torch.zeros(10) + 1
        return (x * 2).sum() + weight.sum() + late[:1]

    # and the zeros, which take a moment
    assert measure(program).timeline.at(0.0)["other"] == 6000 + 40
    assert measure(torch.neg, torch.ones(10)).timeline.at(0.0)["other"] == 80


def test_copies_made_in_a_run_are_born_then():
    given, table = nn.Linear(10, 10), torch.ones(100)

    def program():
        torch.ones(10).sum()
        own = copy.deepcopy(given)
        return own, own(torch.ones(10)), copy.deepcopy(table) + 1

    timeline = measure(program).timeline
    assert timeline.at(0.0)["parameters"] == 440 and timeline.at(1.0)["parameters"] == 880
    assert timeline.at(0.0)["other"] == 400 + 40


def test_the_check_of_saved_tensors_still_works():
    x = torch.ones(3, requires_grad=True)

    def program():
        y = x.exp()
        y.mul_(2)
        y.sum().backward()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        measure(program)


def test_memory_is_released_without_the_collector():
    def program():
        net = nn.Linear(10, 10)
        y = net(torch.ones(2, 10))
        (y * y).exp().sum().backward()
        return weakref.ref(y.untyped_storage()), weakref.ref(net)

    gc.disable()
    try:
        profile = measure(program)
        assert [ref() for ref in profile.result] == [None, None]
        assert profile.timeline.total[-1] == 0
    finally:
        gc.enable()


def test_sparse_tensors_are_left_out():
    table = nn.Embedding(100, 4, sparse=True)
    timeline = measure(lambda: table(torch.tensor([3, 5])).sum().backward()).timeline
    assert timeline.at(1.0)["parameters"] == 1600


def test_what_is_made_on_the_host_is_not_the_devices():
    host = ModelledHost()
    given = torch.ones(500)

    def program():
        here = torch.ones(100)
        with host:
            there = torch.empty_like(here).copy_(given[:100])
            number = torch.tensor(1.0)
            there.add_(number)
            wide = there.double().repeat(100)  # most memory is there, but not the device's
        return here, wide.add(1), given.sum()

    profile = measure(program)
    assert profile.timeline.at(float("inf"))["other"] == profile.peak == 2000 + 400 + 4
    assert {name: t.calls for name, t in profile.by_operator.items()} == {"ones": 1, "sum": 1}
