"""Gradients bit for bit, bytes as the formula of the paper counts them, FLOPs of what is repeated and no more."""

import functools
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as torchs
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from minidist.comm import World
from minidist.models import TransformerLayer, seeded_
from minidist.study import measure
from minidist.study.predict import Transformer
from minidist.train.remat import checkpoint, checkpoint_sequential
from minidist.train.selective import ATTENTION, Kept, Made, Recorder, selective
from tests.study.predict.saved import saved_layer

aten = torch.ops.aten
HIDDEN = 24
HEADS = 4
BATCH = 3
TOKENS = 16


def plain(fn, *inputs, **kwargs):
    return fn(*inputs, **kwargs)


def layer(device="cpu", dropout=0.3):
    like = dict(dropout=dropout, attention="explicit", dtype=torch.float64)
    return seeded_(TransformerLayer(HIDDEN, HEADS, **like).to(device))


def batch(device="cpu"):
    random = torch.Generator().manual_seed(0)
    return torch.randn(BATCH, TOKENS, HIDDEN, generator=random, dtype=torch.float64).to(device)


def gradients(form, make=layer, times=1):
    net, x = make(), batch().requires_grad_()
    torch.manual_seed(5)
    y = form(net, x).square().sum()
    for i in range(times):
        y.backward(retain_graph=i + 1 < times)
    return [x.grad, *(p.grad for p in net.parameters()), torch.rand(2)]


LISTS = {
    "attention": dict(ops=ATTENTION),
    "overloads": dict(ops=[aten._softmax.default, aten.native_dropout.default, aten.gelu]),
    "norms": dict(ops=[aten.native_layer_norm, aten.addmm]),
    "nothing": dict(ops=[]),
    "products kept": dict(ops=[aten.mm, aten.addmm, aten.bmm], save=True),
    "all but views and random numbers": dict(ops=[aten.native_dropout], save=True),
    "everything": dict(ops=[], save=True),
}


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("name", LISTS)
def test_gradients_are_equal_bit_for_bit_with_dropout(name, times):
    ours, expected = gradients(selective(**LISTS[name]), times=times), gradients(plain, times=times)
    assert all(map(torch.equal, ours, expected))


def test_as_pytorchs_own():
    context = functools.partial(
        create_selective_checkpoint_contexts, [aten.addmm.default, aten.bmm.default]
    )
    theirs = gradients(lambda fn, x: torchs(fn, x, use_reentrant=False, context_fn=context))
    assert all(map(torch.equal, gradients(selective([aten.addmm, aten.bmm], save=True)), theirs))


def step(form, net, x):
    form(net, x).sum().backward()


def metered(form, net, x):
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    profile = measure(step, form, net, x)
    end = next(end for phase, _, end in profile.phases if phase == "forward")
    return profile, profile.timeline.at(end)["activations"]


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_bytes_of_the_attention_as_the_papers_formula_has_them(device, dropout):
    """Held after forward: all of a layer but 5as/h of sbh(34 + 5as/h), in bytes of fp64."""
    net = layer(device, dropout)
    x = batch(device).requires_grad_()
    form = selective(ATTENTION)
    net.attention.attend = functools.partial(form, net.attention.attend)
    model = Transformer(1, HIDDEN, HEADS, 50, TOKENS)
    words = dict(dtype=torch.float64, dropout=dropout, attention="explicit", device=device)
    expected = saved_layer(model, BATCH, TOKENS, recompute="selective", **words).total
    everything = saved_layer(model, BATCH, TOKENS, **words).total
    held = metered(plain, net, x)[1]
    assert held - metered(plain, layer(device, dropout), x)[1] == expected - everything < 0


def test_flops_are_those_of_the_named_products():
    plain_flops = metered(plain, layer(dropout=0.0), batch())[0].flops
    scores = 2 * BATCH * TOKENS * TOKENS * HIDDEN
    again = lambda form: metered(form, layer(dropout=0.0), batch())[0].flops - plain_flops
    # and not the product with the values, which nobody needs again
    assert again(selective(ATTENTION)) == scores
    assert again(selective([aten._softmax])) == again(selective([])) == 0
    rows = 2 * BATCH * TOKENS * HIDDEN * HIDDEN
    # all but the last product
    assert again(selective([], save=True)) == 3 * rows + rows + 4 * rows + 2 * scores
    assert again(selective([], save=True)) == again(checkpoint)


def test_less_is_kept_and_all_is_let_go():
    held = {name: metered(selective(**words), layer(), batch())[1] for name, words in LISTS.items()}
    assert (
        held["everything"]
        < held["products kept"]
        < held["nothing"]
        == metered(plain, layer(), batch())[1]
    )
    net, x = layer(), batch().requires_grad_()
    gc.disable()
    try:
        for backward in (True, False):  # whether or not a backward comes, and without the collector
            z = x * 1
            inside, y = weakref.ref(z.untyped_storage()), selective([], save=True)(net, z).sum()
            del z
            assert inside() is not None
            if backward:
                y.backward()
            del y
            assert inside() is None
    finally:
        gc.enable()


def test_what_leads_to_a_tensor_goes_as_soon_as_it_was_used():
    """Of 20 sums one after the other, none of which backward reads, two are there at a time."""
    N = 1000

    def sums(x):
        for _ in range(20):
            x = x + 1
        return x.exp()

    x = torch.zeros(N, requires_grad=True)
    x.grad = torch.zeros(N)
    profile = measure(lambda: selective([], save=True)(sums, x).backward(torch.ones(N)))
    assert profile.peak <= 6 * 4 * N, profile.peak / (4 * N)


class Odd(nn.Module):
    """What a recipe must not get wrong: changes in place, memory as it was found, batch norm, views of all kinds."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(TOKENS, dtype=torch.float64)
        self.scale = nn.Parameter(torch.ones(HIDDEN, dtype=torch.float64))

    def forward(self, x):
        y = self.norm(x * self.scale)
        z = torch.empty_like(y).copy_(y).sin()
        z = nn.functional.dropout(z.exp().transpose(1, 2).contiguous()[..., ::2], 0.3)
        w = torch.zeros_like(z).add_(z.detach()).cos()
        a, b = (z * w).chunk(2, 1)
        out = (a * b).exp() + 1
        out.mul_(2)
        return (out.unsqueeze(-1) * torch.rand(3, dtype=torch.float64)).sum(-1)


@pytest.mark.parametrize(
    "form",
    [
        selective([], save=True),
        selective([aten.mul, aten.exp, aten.sin, aten.native_batch_norm]),
        selective([aten.rand, aten.zeros_like, aten.cos]),
    ],
)
def test_changes_in_place_and_batch_norm(form):
    nets = []

    def make():
        nets.append(Odd())
        return nets[-1]

    assert all(map(torch.equal, gradients(form, make), gradients(plain, make)))
    assert all(map(torch.equal, nets[0].buffers(), nets[1].buffers()))


def test_an_operand_changed_in_place_is_found():
    x, w = torch.ones(3, requires_grad=True), torch.ones(3)
    y = selective([aten.exp])(lambda x: (x * 1 + w).exp().sin(), x)
    y.sum().backward()
    shifted = x * 1
    y = selective([aten.exp])(lambda x: x.exp().sin(), shifted)
    with torch.no_grad():
        shifted.add_(1)
    with pytest.raises(RuntimeError, match="inplace operation: its version is 1, not 0"):
        y.sum().backward()


class Twice(torch.autograd.Function):
    """Reads what it has saved two times."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0] * grad + ctx.saved_tensors[0] * grad


def test_a_tensor_read_twice():
    x = torch.ones(3, requires_grad=True)
    run = lambda form: form(lambda x: Twice.apply(x.exp()).sum(), x)
    for form in (checkpoint, selective([aten.exp])):
        x.grad = None
        run(form).backward()
        assert torch.allclose(x.grad, 2 * (2 * x.detach()).exp())


def test_parts_of_a_graph_one_after_the_other():
    def run(form):
        x = torch.linspace(0, 1, 5, dtype=torch.float64).requires_grad_()
        a, b = form(lambda x: (x.exp().sin(), x.cos().exp().sin()), x)
        a.sum().backward()
        b.sum().backward()
        return [x.grad]

    assert all(map(torch.equal, run(selective([], save=True)), run(plain)))


def test_within_and_around_checkpoints():
    def make():
        return nn.Sequential(layer(), layer(), layer())

    form = selective(ATTENTION)
    inner = lambda net, x: checkpoint_sequential(
        [functools.partial(form, part) for part in net], 2, x
    )
    outer = lambda net, x: form(lambda x: checkpoint_sequential(net, 2, x), x)
    for how in (inner, outer):
        assert all(map(torch.equal, gradients(how, make), gradients(lambda net, x: net(x), make)))


@pytest.mark.parametrize("cast", [False, True])
def test_autocast_of_forward_holds_and_that_of_backward_does_not_matter(cast):
    def run(form, within):
        net, x = layer().float(), batch().float()
        torch.manual_seed(5)
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            y = form(net, x).float().square().sum()
        with torch.autocast("cpu", torch.bfloat16, enabled=within):
            y.backward()
        return [p.grad for p in net.parameters()]

    for form in (selective([], save=True), selective(ATTENTION), checkpoint):
        for within in (False, True):
            assert all(map(torch.equal, run(form, within), run(plain, within)))


def test_in_a_world_each_rank_draws_its_own():
    def program(comm, ours):
        torch.manual_seed(comm.rank)
        net, x = layer(), batch()
        y = (selective([], save=True) if ours else plain)(net, x)
        comm.sendrecv(torch.rand(3), (comm.rank + 1) % 2, torch.empty(3), (comm.rank + 1) % 2)
        y.sum().backward()
        return [p.grad for p in net.parameters()]

    ours, expected = World(2).run(program, True), World(2).run(program, False)
    assert all(
        torch.equal(a, b)
        for mine, theirs in zip(ours, expected, strict=True)
        for a, b in zip(mine, theirs, strict=True)
    )
    assert not torch.equal(ours[0][-1], ours[1][-1])


def test_wrong_lists():
    with pytest.raises(TypeError, match=r"named as torch.ops.aten.bmm, not by 'bmm'"):
        selective(["bmm"])


def test_without_gradients_it_is_the_plain_call():
    with torch.no_grad():
        assert torch.equal(
            selective(ATTENTION)(layer(dropout=0.0), batch()), layer(dropout=0.0)(batch())
        )


# ------------------------------------------------------------
# recipes
def record(fn, *ops, save=False):
    recorder = Recorder(set(ops), save)
    with recorder:
        results = fn()
    return [recorder.find(x) for x in results], results


def names(made):
    """The operators behind a recipe, the last one first."""
    found, left = [], [made.call]
    while left:
        call = left.pop(0)
        found.append(call.func.overloadpacket.__name__)
        left += [*call.parents]
    return found


def test_named_operators_and_views_of_what_they_make():
    x = torch.ones(2, 3)

    def fn():
        a = x.exp()
        b = a.t()[1:].sin()
        return a, b, b + 1, x.t(), (b + 1).exp()

    (a, b, c, d, e), _ = record(fn, aten.exp, aten.sin)
    assert names(a) == ["exp"] and names(b) == ["sin", "slice", "t", "exp"] and c is d is None
    # of the sum, which is kept
    assert names(e) == ["exp"] and [type(leaf) for leaf in e.call.args] == [Kept]
    assert isinstance(b, Made) and next(iter(b.call.parents)).order == b.call.order - 1


def test_never_what_changes_an_operand_or_leaves_memory_as_it_is():
    def fn():
        a = torch.ones(3).exp()
        b = a.exp()
        a.add_(1)
        return a, b, torch.empty(3), torch.ones(2), a.sin()

    listed = (aten.exp, aten.add_, aten.empty, aten.ones, aten.sin)
    (a, b, c, d, e), _ = record(fn, *listed)
    assert (
        a is c is None
        and names(b) == ["exp", "exp", "ones"]
        and names(d) == ["ones"]
        and names(e) == ["sin"]
    )
    assert record(fn, save=True)[0][3] is None


def test_a_recipe_gives_the_tensor_again_with_its_random_numbers():
    x = torch.ones(50)
    torch.manual_seed(0)
    (made,), (y,) = record(lambda: [aten.native_dropout(x, 0.5, True)[0]], aten.native_dropout)
    torch.manual_seed(9)
    assert torch.equal(made.call.run({})[made.number], y)


def test_memory_that_is_used_again_is_another_tensor():
    recorder = Recorder({aten.ones}, False)
    with recorder:
        key = torch.ones(3).untyped_storage()._cdata
    for _ in range(100):
        x = torch.ones(3)
        if x.untyped_storage()._cdata == key:
            break
    assert recorder.find(x) is None
