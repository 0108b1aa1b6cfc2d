"""Both forms against the plain call, bit for bit; and what a form is for: memory, FLOPs."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as torchs

from minidist.comm import World, launch
from minidist.models import TransformerLayer, mlp, seeded_
from minidist.parallel.data import DataParallel
from minidist.parallel.tensor import TensorLayer, seed_group_
from minidist.study import measure
from minidist.train.remat import checkpoint, checkpoint_reentrant

FORMS = [checkpoint, checkpoint_reentrant]
both = pytest.mark.parametrize("form", FORMS)


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


@both
def test_structures_keywords_and_other_values(form):
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

    assert equal(run(form), run(plain))


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
            TensorLayer(24, 12, comm, dropout=0.2, dtype=torch.float64) for _ in range(2)
        )
        x = data(2, 5, 24).requires_grad_()
        y = x
        for layer in layers:
            y = form(layer, y)
        y.square().sum().backward()
        return [x.grad, *(p.grad for p in layers.parameters())]

    for a, b in zip(World(3).run(program, form), World(3).run(program, plain), strict=True):
        assert equal(a, b)
