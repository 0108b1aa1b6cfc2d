"""Checkpoints against the plain call, bit for bit; what they are for, memory and FLOPs; chains, and plans for them."""

import functools
import gc
import itertools
import math
import random
import weakref
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils.checkpoint import checkpoint as torchs

from minidist.comm import World, launch
from minidist.models import TransformerLayer, mlp, seeded_
from minidist.parallel.data import DataParallel
from minidist.parallel.tensor import seed_group_
from minidist.study import measure
from minidist.study.predict import (
    halves_bytes,
    halves_forwards,
    segments_bytes,
    segments_forwards,
)
from minidist.train.remat import (
    Plan,
    RandomState,
    Replay,
    Save,
    Segment,
    Slots,
    checkpoint,
    checkpoint_recursive,
    checkpoint_reentrant,
    checkpoint_sequential,
    fill_by_repeating,
    plan,
    repeatable,
    restoring,
)
from tests.parallel.tensor_cases import tensor_layer
from tests.size import FULL

FORMS = [checkpoint, checkpoint_reentrant]
both = pytest.mark.parametrize("form", FORMS)


# ------------------------------------------------------------
# a function that runs again as it ran
def test_numbers_are_drawn_again_and_those_of_now_go_on():
    torch.manual_seed(3)
    own = torch.Generator().manual_seed(4)
    state = RandomState([1, own, torch.ones(2)])
    then = torch.rand(5), torch.rand(5, generator=own)
    expected = torch.Generator().manual_seed(3)
    torch.rand(5, generator=expected)
    with state.again():
        assert torch.equal(torch.rand(5), then[0]) and torch.equal(
            torch.rand(5, generator=own), then[1]
        )
        torch.rand(100)
    assert torch.equal(torch.rand(5), torch.rand(5, generator=expected))
    with state.again():
        assert torch.equal(torch.rand(5), then[0])  # as often as one likes


def test_an_exception_leaves_the_numbers_in_order():
    state = RandomState()
    torch.rand(3)
    now = torch.get_rng_state()
    with pytest.raises(KeyError), state.again():
        raise KeyError
    assert torch.equal(torch.get_rng_state(), now)


def test_each_rank_has_its_own():
    def program(comm):
        torch.manual_seed(comm.rank)
        replay = Replay()
        x = torch.rand(3)
        if comm.rank:
            comm.send(x, 0)
        else:
            comm.recv(torch.empty(3), 1)  # the other rank draws meanwhile
        with replay.again():
            if comm.rank:
                comm.recv(torch.empty(3), 0)
            else:
                comm.send(x, 1)
            return torch.equal(torch.rand(3), x)

    assert World(2).run(program) == [True, True]


def state(device="cpu"):
    return (
        torch.is_autocast_enabled(device),
        torch.get_autocast_dtype(device),
        torch.is_autocast_cache_enabled(),
    )


@pytest.mark.parametrize(
    "then",
    [
        None,
        dict(dtype=torch.bfloat16),
        dict(dtype=torch.float16, cache_enabled=False),
        dict(enabled=False),
    ],
)
@pytest.mark.parametrize("now", [None, dict(dtype=torch.float16)])
def test_autocast(then, now):
    with torch.autocast("cpu", **(then or dict(enabled=False))):
        replay, expected = Replay([torch.ones(1)]), state()
    with torch.autocast("cpu", **(now or dict(enabled=False))):
        before = state()
        with replay.again():
            assert state() == expected
        assert state() == before


class Mode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("then", [(), (0,), (0, 1), (0, 2, 1)])
@pytest.mark.parametrize("now", [(), (0,), (0, 1), (1, 0)])
def test_function_modes(then, now):
    modes = [Mode() for _ in range(3)]

    def within(numbers, fn):
        if not numbers:
            return fn()
        with modes[numbers[0]]:
            return within(numbers[1:], fn)

    def check():
        with replay.again():
            assert _get_current_function_mode_stack() == [modes[i] for i in then]
        assert _get_current_function_mode_stack() == [modes[i] for i in now]

    replay = within(then, Replay)
    within(now, check)
    assert _get_current_function_mode_stack() == []


def test_the_default_device_is_a_mode():
    with torch.device("meta"):
        replay = Replay()
    with replay.again():
        assert torch.empty(2).is_meta
    assert not torch.empty(2).is_meta


def through(net, x):
    return net(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4, dtype=torch.float64)
        self.register_buffer("table", torch.ones(3))

    def forward(self, x):
        return self.norm(x).exp() * self.table.sum()

    def other(self, x, power):
        return self.norm(x) ** power


@both
@pytest.mark.parametrize("way", ["module", "method", "closure", "partial", "list", "function"])
def test_a_batch_counts_once(form, way):
    net, expected = Net(), Net()
    x = torch.arange(12.0, dtype=torch.float64).reshape(3, 4).square().requires_grad_()
    parts = [net]
    fns = {
        "module": net,
        "method": net.forward,
        "closure": lambda x: net(x),
        "partial": functools.partial(net.other, power=2),
        "list": lambda x: parts[0](x),
        "function": lambda x: through(net, x),
    }
    args = (2,) if way == "partial" else ()
    form(fns[way], x).sum().backward()
    (expected.other if args else expected)(x, *args).sum().backward()
    for (name, mine), theirs in zip(net.named_buffers(), expected.buffers(), strict=True):
        assert torch.equal(mine, theirs), name
    assert net.norm.num_batches_tracked == 1


def test_buffers_are_what_they_were():
    net, other = Net(), nn.BatchNorm1d(4, dtype=torch.float64)
    x = torch.randn(3, 4, dtype=torch.float64)
    before = {name: b.clone() for name, b in net.named_buffers()}
    kept = net.norm.running_mean.data_ptr()
    with pytest.raises(KeyError), restoring():
        net(x)
        net(x)
        assert net.norm.num_batches_tracked == 2
        raise KeyError
    assert all(torch.equal(b, before[name]) for name, b in net.named_buffers())
    assert net.norm.running_mean.data_ptr() == kept  # what was saved of it is still right
    other(x)
    assert other.num_batches_tracked == 1  # nothing goes on afterwards


def test_other_ranks_count_on():
    """A rank that waits within its repetition leaves the modules of others alone."""

    def program(comm):
        norm, x = nn.BatchNorm1d(4), torch.randn(3, 4)
        peer = 1 - comm.rank
        if comm.rank:
            comm.send(torch.ones(1), peer)
            norm(x)
            comm.send(torch.ones(1), peer)
        else:
            with restoring():
                comm.recv(torch.empty(1), peer)
                norm(x)
                comm.recv(torch.empty(1), peer)
        return norm.num_batches_tracked.item()

    assert World(2).run(program) == [0, 1]


def test_operands_of_all_kinds_and_the_repetition():
    def fn(a, pair, *, scale, name):
        assert name == "n"
        return a * pair[0] + pair[1] * scale + torch.rand(3)

    a, b, c = (torch.full((3,), float(i), requires_grad=i == 1) for i in (1, 2, 3))
    inputs, kwargs = (a, [b, c]), dict(scale=4, name="n")
    torch.manual_seed(0)
    tensors, repeat = repeatable(fn, inputs, kwargs)
    assert [id(x) for x in tensors] == [id(a), id(b), id(c)]
    with torch.no_grad():
        first = fn(*inputs, **kwargs)
        again = repeat([a, b, c])
    assert torch.equal(again, first) and again.requires_grad
    assert torch.allclose(repeat([a, b, c + 1]), first + 4)


def test_the_repetition_holds_no_operands():
    """Who gives operands then has kept them."""
    operands = [torch.ones(3) for _ in range(3)]
    seen = [weakref.ref(x) for x in operands]
    fn = lambda a, pair: a + pair[0] + pair[1]
    repeat = repeatable(fn, (operands[0], operands[1:]), {})[1]
    operands.clear()
    assert [x() for x in seen] == [None] * 3
    assert repeat([torch.ones(3)] * 3).tolist() == [3, 3, 3]


# ------------------------------------------------------------
# both forms
def plain(fn, *inputs, **kwargs):
    return fn(*inputs, **kwargs)


def data(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def blocks(count=3, dropout=0.3):
    like = dict(dropout=dropout, attention="explicit", dtype=torch.float64)
    return nn.ModuleList(seeded_(TransformerLayer(16, 2, **like), seed) for seed in range(count))


def gradients(form, layers, learn, x=None):
    """Of the parameters and, if it is to learn, of the input; and the random number that comes next."""
    torch.manual_seed(5)
    x = data(2, 6, 16).requires_grad_(learn) if x is None else x
    y = x
    for layer in layers:
        y = form(layer, y)
    y.square().sum().backward()
    return [
        y.detach(),
        *(p.grad for p in layers.parameters()),
        *([x.grad] if learn else []),
        torch.rand(3),
    ]


def equal(some, others):
    return len(some) == len(others) and all(map(torch.equal, some, others))


def close(some, others):
    """Where a gradient adds up in another order: the reentrant form's inner backwards each add to .grad."""
    return len(some) == len(others) and all(
        torch.allclose(a, b, 1e-12, 1e-12) for a, b in zip(some, others, strict=True)
    )


@both
@pytest.mark.parametrize("learn", [False, True])
def test_gradients_are_equal_bit_for_bit_with_dropout(form, learn):
    expected = gradients(plain, blocks(), learn)
    assert equal(gradients(form, blocks(), learn), expected)
    assert equal(
        gradients(lambda fn, x: torchs(fn, x, use_reentrant=False), blocks(), learn), expected
    )


@both
def test_an_input_that_needs_no_gradient_is_no_pitfall(form):
    """PyTorch's reentrant form gives the parameters of a first block no gradient here, with a warning."""
    net, lost = mlp([4, 5, 2]), mlp([4, 5, 2])
    form(net, torch.ones(3, 4)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
        assert not torchs(lost, torch.ones(3, 4), use_reentrant=True).requires_grad


def test_structures_keywords_and_other_values():
    def fn(pair, scale, *, shift, how):
        a, b = pair["a"], pair["b"]
        assert how == "sum"
        return {"sum": (a * b).exp() * scale + shift.sin(), "rest": [a.argmax(), 7, None, a * 2]}

    def run(form):
        a, b, c, d = (data(4, seed=i).requires_grad_(i != 1) for i in range(4))
        out = form(fn, {"a": a, "b": b}, 3, shift=c, how="sum")
        assert out["rest"][1:3] == [7, None] and out["rest"][0].dtype == torch.int64
        (out["sum"] * d + out["rest"][3]).sum().backward()
        assert b.grad is None
        return [out["sum"].detach(), a.grad, c.grad, d.grad]

    assert equal(run(checkpoint), run(plain))


@both
def test_only_some_outputs_go_on(form):
    def run(form):
        x = data(5).requires_grad_()
        _, used, _ = form(lambda x: (x.exp(), x.sin().exp(), x.detach() * 2), x)
        used.sum().backward()
        return [x.grad]

    assert equal(run(form), run(plain))


@both
def test_the_input_handed_on(form):
    def run(form):
        x = data(5).requires_grad_()
        same, other = form(lambda x: (x, x.exp()), x * 2)
        (same * other).sum().backward()
        return [x.grad]

    assert equal(run(form), run(plain))


@both
def test_without_gradients_it_is_the_plain_call(form):
    net, calls = mlp([4, 5, 2]), []
    net.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        y = form(net, torch.ones(3, 4))
    assert torch.equal(y, net(torch.ones(3, 4)).detach()) and y.grad_fn is None and len(calls) == 2


@both
def test_nested(form):
    def run(form, outer):
        layers = blocks(4)
        halves = [
            lambda x, part=part: form(part[1], form(part[0], x))
            for part in (layers[:2], layers[2:])
        ]
        torch.manual_seed(5)
        x = data(2, 6, 16).requires_grad_()
        outer(halves[1], outer(halves[0], x)).sum().backward()
        return [x.grad, *(p.grad for p in layers.parameters())]

    assert equal(run(form, form), run(plain, plain))


def test_one_form_within_the_other():
    def run(inner, outer):
        layer = blocks(1)[0]
        torch.manual_seed(5)
        outer(lambda x: inner(layer, x).exp().sin(), data(2, 6, 16)).sum().backward()
        return [p.grad for p in layer.parameters()]

    expected = run(plain, plain)
    assert equal(run(checkpoint, checkpoint_reentrant), expected) and equal(
        run(*FORMS[::-1]), expected
    )


@both
def test_twice(form):
    """The same block twice in one graph, and the same graph backwards twice."""

    def run(form):
        layer, x = blocks(1)[0], data(2, 6, 16).requires_grad_()
        torch.manual_seed(5)
        y = form(layer, form(layer, x)).sum()
        y.backward(retain_graph=True)
        y.backward()
        return [x.grad, *(p.grad for p in layer.parameters())]

    assert (equal if form is checkpoint else close)(run(form), run(plain))


def test_gradients_by_name_and_of_gradients():
    """What only the hooks can."""

    def run(form):
        x, w = data(5).requires_grad_(), data(5, seed=1).requires_grad_()
        (first,) = torch.autograd.grad(
            form(lambda x: (x * w).sin().exp(), x).sum(), x, create_graph=True
        )
        return [first.detach(), *torch.autograd.grad(first.square().sum(), [x, w])]

    assert equal(run(checkpoint), run(plain))
    with pytest.raises(RuntimeError, match=r"autograd\.grad and backward"):
        run(checkpoint_reentrant)


def test_a_backward_within_the_function():
    def fn(x):
        y = x.exp().sin()
        (slope,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        return y * slope.detach().cos() + x.exp()

    def run(form):
        x = data(5).requires_grad_()
        form(fn, x * 1).sum().backward()
        return [x.grad]

    assert equal(run(checkpoint), run(plain))


def test_parts_of_a_graph_one_after_the_other():
    def run(form):
        x = data(5).requires_grad_()
        a, b = form(lambda x: (x.exp(), x.sin().exp()), x)
        return [
            *torch.autograd.grad(a.sum(), x, retain_graph=True),
            *torch.autograd.grad(b.sum(), x),
        ]

    assert equal(run(checkpoint), run(plain))


@both
def test_an_input_changed_in_place_is_found(form):
    x, net = data(3, 4).requires_grad_(), mlp([4, 5, 2], dtype=torch.float64)
    z = x * 1
    y = form(net, z)
    z.data.add_(0)  # unseen, as anywhere in autograd
    with torch.no_grad():
        z.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        (
            lambda x: x.exp(),
            lambda x: x * 2,
            "forward saved 1 tensors for backward, its recomputation 0",
        ),
        (
            lambda x: x.exp(),
            lambda x: x[:2].exp(),
            r"was \(3,\) torch.float64 in forward, and is \(2,\)",
        ),
        (
            lambda x: x.exp(),
            lambda x: x.float().exp(),
            "and is .* torch.float32 in its recomputation",
        ),
    ],
)
def test_a_function_that_does_something_else_is_found(first, then, said):
    runs = [then, first]
    y = checkpoint(lambda x: runs.pop()(x), data(3).requires_grad_())
    with pytest.raises(ValueError, match=said):
        y.sum().backward()


def test_slots_are_filled_at_once_and_emptied_as_they_are_read():
    x = torch.ones(3, requires_grad=True)
    runs = []

    def repeat(tensors):
        runs.append(tensors)
        return tensors[0].exp().exp()  # saves both results

    saved = Save.apply(torch.empty(0, requires_grad=True), x)
    slots = Slots(functools.partial(fill_by_repeating, repeat, saved))
    first, second = slots.add((x.shape, x.dtype)), slots.add((x.shape, x.dtype))
    assert torch.equal(slots.read(second), x.exp().exp()) and len(runs) == 1
    assert torch.equal(slots.read(first), x.exp()) and len(runs) == 1
    assert first.value is second.value is None
    del second  # its node is gone
    assert torch.equal(slots.read(first), x.exp()) and len(runs) == 2


@both
def test_an_exception_of_the_function_comes_out(form):
    def broken(x):
        raise KeyError("on purpose")

    with pytest.raises(KeyError, match="on purpose"):
        form(broken, data(3).requires_grad_())
    assert equal(gradients(form, blocks(1), True), gradients(plain, blocks(1), True))


def test_the_function_cannot_catch_the_early_stop():
    def fn(x):
        try:
            return x.exp() + 1
        except Exception:
            return x

    x = data(3).requires_grad_()
    checkpoint(fn, x).sum().backward()
    assert torch.equal(x.grad, x.detach().exp())


def test_nothing_is_left():
    x = data(3, 4).requires_grad_()
    z = x * 1
    inside = weakref.ref(z.untyped_storage())
    gc.disable()
    try:
        y = checkpoint(mlp([4, 5, 2], dtype=torch.float64), z)
        del z
        assert inside() is not None
        y.sum().backward()
        assert inside() is None  # without the collector: there is no cycle
    finally:
        gc.enable()


def step(form, layers, x):
    for p in layers.parameters():
        p.grad.zero_()
    for layer in layers:
        x = form(layer, x)
    x.sum().backward()


def metered(form, count=6):
    layers = nn.ModuleList(
        nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32)) for _ in range(count)
    )
    layers.to("meta")
    for p in layers.parameters():
        p.grad = torch.zeros_like(p)
    return measure(step, form, layers, torch.empty(256, 32, device="meta"))


@pytest.mark.parametrize(("form", "again"), [(checkpoint, 1), (checkpoint_reentrant, 2)])
def test_memory_and_flops(form, again):
    """Six blocks of two products: six inputs, and what one block keeps. The hooks stop before the second product."""
    count = 6
    product, edge = 2 * 256 * 32 * 32, 256 * 32 * 4
    ours, whole = metered(form), metered(plain)
    assert whole.flops == (3 * 2 * count - 1) * product  # the first input needs no gradient
    assert ours.flops == whole.flops + again * count * product
    # the gradient of the loss
    most = lambda profile: profile.timeline.live["activations"].max() - 4
    assert most(whole) == 3 * count * edge and most(ours) == (count - 1 + 3) * edge
    assert ours.flops <= 1.34 * (whole.flops + product)


def averaged(comm, form):
    """Gradients of ranks with data and dropout of their own, averaged, and the random numbers that come next."""
    torch.manual_seed(comm.rank)
    layers = blocks()
    model = DataParallel(
        nn.Sequential(*(Through(form, layer) for layer in layers)), comm, bucket_bytes=1000
    )
    model(data(2, 6, 16, seed=comm.rank)).square().sum().backward()
    return [*(p.grad.clone() for p in layers.parameters()), torch.rand(2)]


class Through(nn.Module):
    def __init__(self, form, layer):
        super().__init__()
        self.form, self.layer = form, layer

    def forward(self, x):
        return self.form(self.layer, x)


RUNS = {
    "world": lambda program, *args: World(3).run(program, *args),
    "processes": lambda program, *args: launch(program, 3, *args),
}


@pytest.mark.parametrize(
    ("run", "form"),
    [("world", checkpoint), ("world", checkpoint_reentrant), ("processes", checkpoint)],
)
def test_among_ranks_with_random_numbers_of_their_own(run, form):
    ours, expected = RUNS[run](averaged, form), RUNS[run](averaged, plain)
    same = equal if form is checkpoint else close
    assert all(same(a, b) for a, b in zip(ours, expected, strict=True))
    assert equal(ours[0][:-1], ours[2][:-1]) and not torch.equal(ours[0][-1], ours[2][-1])


@both
def test_collectives_are_repeated(form):
    def program(comm, form):
        seed_group_(comm, 8)
        layers = nn.ModuleList(
            tensor_layer(24, 12, comm, dropout=0.2, dtype=torch.float64) for _ in range(2)
        )
        x = data(2, 5, 24).requires_grad_()
        y = x
        for layer in layers:
            y = form(layer, y)
        y.square().sum().backward()
        return [x.grad, *(p.grad for p in layers.parameters())]

    for a, b in zip(World(3).run(program, form), World(3).run(program, plain), strict=True):
        assert equal(a, b)


# ------------------------------------------------------------
# chains
ROWS, WIDTH = 512, 64
EDGE = ROWS * WIDTH * 4


def chain(widths, device="cpu", dropout=0.0):
    """Layers that keep their input and what goes into GELU."""
    layers = [
        nn.Sequential(
            nn.Linear(a, b, device="meta"), nn.GELU(), *([nn.Dropout(dropout)] if dropout else [])
        )
        for a, b in pairwise(widths)
    ]
    return seeded_(nn.Sequential(*layers).to_empty(device=device))


WAYS = {
    **{
        f"{k} segments": lambda layers, x, k=k: checkpoint_sequential(layers, k, x)
        for k in (None, 1, 2, 3, 7)
    },
    "halves": checkpoint_recursive,
    "plan": lambda layers, x: checkpoint_sequential(
        layers, Plan((Segment(0, 2, True), Segment(2, 3, False), Segment(3, 7, True)), 0, 0, 0), x
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_gradients(way):
    def run(how):
        layers, x = chain([4, 5, 6, 5, 4, 3, 4, 2], dropout=0.4), torch.ones(3, 4).requires_grad_()
        torch.manual_seed(2)
        y = how(layers, x)
        y.square().sum().backward()
        return [y.detach(), x.grad, *(p.grad for p in layers.parameters())]

    assert all(map(torch.equal, run(WAYS[way]), run(lambda layers, x: layers(x))))


def test_few_functions():
    x = torch.ones(2, requires_grad=True)
    for how in (checkpoint_recursive, lambda layers, x: checkpoint_sequential(layers, None, x)):
        assert how([], x) is x and torch.equal(how([torch.exp], x), x.exp())


def test_wrong_numbers_are_refused():
    layers, x = [torch.exp] * 3, torch.ones(2)
    for k in (0, 4):
        with pytest.raises(ValueError, match=f"3 functions do not split into {k} segments"):
            checkpoint_sequential(layers, k, x)
    with pytest.raises(ValueError, match="the plan is for 2 layers, there are 3"):
        checkpoint_sequential(layers, plan([1, 1], [1, 1], [0, 0, 0], [0, 0]), x)


def chain_step(layers, x, how):
    for p in layers.parameters():
        p.grad.zero_()
    how(layers, x).sum().backward()


def chain_metered(widths, how):
    layers = chain(widths, "meta")
    for p in layers.parameters():
        p.grad = torch.zeros_like(p)
    return measure(chain_step, layers, torch.empty(ROWS, widths[0], device="meta"), how)


def kept(profile):
    return profile.timeline.live["activations"].max() - 4  # the gradient of the loss


@pytest.mark.parametrize("layers", [4, 9, 16, 23, 32, 64] + [25, 36, 49] * FULL)
def test_memory_grows_like_the_root_as_predicted_and_flops_by_a_third_at_most(layers, figure):
    widths = [WIDTH] * (layers + 1)
    a = 2 * EDGE
    x = EDGE
    whole = chain_metered(widths, lambda chain, x: chain(x))
    assert kept(whole) == layers * a
    root = round(layers**0.5)
    best = min(range(1, layers + 1), key=lambda k: segments_bytes(layers, k, a, x))
    for k in {root, best}:
        ours = chain_metered(widths, lambda chain, x, k=k: checkpoint_sequential(chain, k, x))
        assert kept(ours) == segments_bytes(layers, k, a, x)
        forward = 2 * ROWS * WIDTH * WIDTH
        assert whole.flops == (3 * layers - 1) * forward  # the first input needs no gradient
        assert ours.flops == whole.flops + segments_forwards(layers, k) * forward
        assert ours.flops <= 1.34 * 3 * layers * forward
        figure(
            f"L={layers}: {kept(whole):,} B of activations, {kept(ours):,} in {k} segments, as predicted; "
            f"FLOPs {ours.flops / whole.flops:.3f} times"
        )
    assert kept(ours) <= 3 * layers**0.5 * EDGE


@pytest.mark.parametrize("layers", [4, 8, 16, 64])
def test_by_halves_memory_grows_like_the_logarithm(layers):
    ours = chain_metered([WIDTH] * (layers + 1), checkpoint_recursive)
    assert kept(ours) == halves_bytes(layers, 2 * EDGE, EDGE)
    forward = 2 * ROWS * WIDTH * WIDTH
    assert ours.flops == (3 * layers - 1 + halves_forwards(layers)) * forward


# ------------------------------------------------------------
# plans
def every_plan(costs, memories, edges, work):
    """(peak, repeated, held) of each way to cut a chain into segments, kept or repeated, layer by layer."""
    layers = len(costs)
    for cuts in itertools.product([False, True], repeat=layers - 1):
        ends = [i + 1 for i, cut in enumerate(cuts) if cut] + [layers]
        segments = list(zip([0, *ends], ends, strict=False))
        for again in itertools.product([False, True], repeat=len(segments)):
            held = 0
            peak = 0
            repeated = 0
            for (first, end), repeats in zip(segments, again, strict=True):
                live = held
                for i in range(first, end):
                    live += edges[i] + memories[i]
                    peak = max(peak, live + work[i])
                held = held + edges[first] if repeats else live
                repeated += sum(costs[first:end]) if repeats else 0
            yield peak, repeated, held


def drawn(seed, layers):
    random.seed(seed)
    numbers = lambda n, high: [random.randint(0, high) for _ in range(n)]
    return [numbers(layers, 9), numbers(layers, 20), numbers(layers + 1, 6), numbers(layers, 5)]


@pytest.mark.parametrize("layers", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_better(layers, seed):
    costs, memories, edges, work = drawn(seed, layers)
    everything = list(every_plan(costs, memories, edges, work))
    low, high = min(everything)[0], max(everything)[0]
    assert plan(costs, memories, edges, work).peak == low
    for budget in sorted({low, high, *(random.randint(low, high) for _ in range(5))}):
        found = plan(costs, memories, edges, work, budget)
        assert found.repeated == min(repeated for peak, repeated, _ in everything if peak <= budget)
        assert found.peak <= budget
        assert (found.peak, found.repeated) in {
            (peak, repeated) for peak, repeated, _ in everything
        }
    with pytest.raises(
        ValueError, match=f"no plan of {layers} layers fits into {low - 1} bytes: {low} are needed"
    ):
        plan(costs, memories, edges, work, low - 1)


def test_what_a_plan_says_of_itself_is_true():
    """Peak and cost again from the segments alone."""
    costs, memories, edges, work = drawn(9, 7)
    for budget in range(plan(costs, memories, edges, work).peak, 120, 7):
        found = plan(costs, memories, edges, work, budget)
        assert [s.first for s in found.segments] == [0, *(s.end for s in found.segments[:-1])]
        assert found.segments[-1].end == 7
        assert found.repeated == sum(
            sum(costs[first:end]) for first, end, again in found.segments if again
        )


def test_by_hand():
    """Four layers that keep 10 bytes each, with edges of 1: all is 44 and twice an edge's gradient."""
    chain = dict(costs=[1] * 4, memories=[10] * 4, edges=[1] * 5, work=[2] * 4)
    every = tuple(Segment(i, i + 1, False) for i in range(4))
    assert plan(**chain, budget=46) == Plan(every, 46, 0, 44)
    some = (Segment(0, 2, True), Segment(2, 3, False), Segment(3, 4, False))
    assert plan(**chain, budget=25) == Plan(some, 25, 2, 1 + 11 + 11)
    assert plan(**chain).peak == 4 + 10 + 2


def test_sixteen_equal_layers_are_cut_near_the_root():
    found = plan([1] * 16, [0] * 16, [1] * 17, [2] * 16)
    assert found.peak - 2 <= 2 * math.sqrt(16) and found.repeated <= 16


def test_numbers_that_do_not_match():
    for values in (([1], [1] * 3, [1] * 2), ([1] * 2, [1] * 2, [1] * 2), ([1] * 2, [1] * 3, [1])):
        given = "{}, {} and {}".format(*map(len, values))
        with pytest.raises(
            ValueError, match=f"2 costs need 2 memories, 3 edges and 2 values of work, not {given}"
        ):
            plan([1, 1], *values)


WIDTHS = [40, 60, 30, 90, 20, 50, 100, 70, 30, 80, 10, 60, 4]
"""Uneven, so that each plan is another."""


def planned(budget=None):
    """A plan for the chain of WIDTHS, by looking at it: a layer keeps its input and what goes into GELU.

    Its backward takes two gradients at GELU, then, what went into GELU being gone, that of its input and its weights'.
    The gradient of the last output is one number, expanded; the first input needs none.
    """
    edges = [ROWS * width * 4 for width in WIDTHS]
    costs = [2 * ROWS * a * b for a, b in pairwise(WIDTHS)]
    inputs = [0, *edges[1:-1]]
    weights = [4 * (a * b + b) for a, b in pairwise(WIDTHS)]
    two = [2 * edge for edge in edges[1:-1]] + [edges[-1]]
    work = [max(gelu, x + w) for gelu, x, w in zip(two, inputs, weights, strict=True)]
    return plan(costs, edges[1:], edges, work, budget)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.8, 1.0])
def test_the_peak_and_the_flops_of_a_plan_are_those_measured(share):
    low, high = planned().peak, planned(10**9).peak
    found = planned(low + share * (high - low))
    assert found.peak <= low + share * (high - low) and (found.repeated == 0) is (share == 1.0)
    ours = chain_metered(WIDTHS, lambda layers, x: checkpoint_sequential(layers, found, x))
    constant = sum(ours.at_peak[kind] for kind in ("parameters", "gradients"))
    assert ours.peak == constant + found.peak + 8  # the loss and its gradient
    assert ours.flops == chain_metered(WIDTHS, lambda layers, x: layers(x)).flops + found.repeated
