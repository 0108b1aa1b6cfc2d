"""autocast beside torch.autocast on the CPU, operator by operator; what it saves; its cache, nesting, and edges."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minidist.models import gpt, mlp, next_token_loss
from minidist.study import measure
from minidist.train.amp import BLACK, WHITE, active, autocast

HALVES = [torch.float16, torch.bfloat16]
f32, f64 = torch.float32, torch.float64


def tensor(*shape, dtype=f32, seed=0):
    made = (
        torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=f64)
        .add(0.1)
        .to(dtype)
    )
    return made.requires_grad_()


def classes():
    return torch.tensor([0, 1, 2, 0])


# name: (function, its floating inputs); h is the half. x: (4, 4) fp32, and y; i: (2, 3, 6, 6) an image
X = (4, 4)
Y = (4, 4)
I = (2, 3, 6, 6)
SAME = {
    "x @ y": (lambda x, y: x @ y, [X, Y]),
    "mm": (torch.mm, [X, Y]),
    "method matmul": (lambda x, y: x.matmul(y), [X, Y]),
    "addmm": (torch.addmm, [X, X, Y]),
    "bmm": (torch.bmm, [(2, 3, 4), (2, 4, 5)]),
    "baddbmm": (torch.baddbmm, [(2, 3, 5), (2, 3, 4), (2, 4, 5)]),
    "einsum": (lambda x, y: torch.einsum("ab,cb->ac", x, y), [X, Y]),
    "linear": (F.linear, [X, Y, (4,)]),
    "conv1d": (F.conv1d, [(2, 3, 6), (5, 3, 2)]),
    "conv2d": (F.conv2d, [I, (5, 3, 2, 2)]),
    "conv_transpose2d": (F.conv_transpose2d, [I, (3, 5, 2, 2)]),
    "scaled_dot_product_attention": (F.scaled_dot_product_attention, [(2, 4, 4)] * 3),
    "multi_head_attention": (
        lambda x, w, b, o, c: F.multi_head_attention_forward(
            x, x, x, 4, 2, w, b, None, None, False, 0.0, o, c, need_weights=False
        )[0],
        [(3, 2, 4), (12, 4), (12,), X, (4,)],
    ),
    "cross_entropy of a half": (lambda x, y: F.cross_entropy(x @ y, classes()), [X, Y]),
    "nll_loss of a half": (lambda x, y: F.nll_loss(x @ y, classes()), [X, Y]),
    "mse_loss of a half": (lambda x, y: F.mse_loss(x @ y, y), [X, Y]),
    "smooth_l1_loss of a half": (lambda x, y: F.smooth_l1_loss(x @ y, y), [X, Y]),
    "prod of a half": (lambda x, y: (x @ y).prod(), [X, Y]),
    "cdist of a half": (lambda x, y: torch.cdist(x @ y, y), [X, Y]),
    "cat": (lambda x, y: torch.cat([x, x @ y]), [X, Y]),
    "stack": (lambda x, y: torch.stack([x @ y, x]), [X, Y]),
    "cat of halves": (lambda x, y: torch.cat([x @ y, y @ x]), [X, Y]),
    "relu of a half": (lambda x, y: F.relu(x @ y), [X, Y]),
    "gelu": (F.gelu, [X]),
    "half + fp32": (lambda x, y: x @ y + x, [X, Y]),
    "batch_norm of a half": (
        lambda x, y: F.batch_norm(x @ y, None, None, y[0], y[0], True),
        [X, Y],
    ),
    "max_pool2d": (lambda i: F.max_pool2d(i, 2), [I]),
}
# In fp32 here and on CUDA, whose lists these are; torch's CPU lists leave them in half.
IN_HALF_BY_TORCH = {
    "softmax": lambda h: F.softmax(h, -1),
    "log_softmax": lambda h: h.log_softmax(-1),
    "sum": torch.sum,
    "layer_norm": lambda h: F.layer_norm(h, (4,)),
    "group_norm": lambda h: F.group_norm(h, 2),
    "exp": torch.exp,
    "norm": lambda h: h.norm(),
    "vector_norm": torch.linalg.vector_norm,
    "log": torch.log,
    "pow": lambda h: h**2,
    "rpow": lambda h: 2**h,
    "reciprocal": lambda h: 1 / h,
    "rsqrt": torch.rsqrt,
    "mean": torch.mean,
    "square": torch.square,
    "cumsum": lambda h: h.cumsum(0),
    "logsumexp": lambda h: h.logsumexp(0),
    "var": torch.var,
    "cosine_similarity": lambda h: F.cosine_similarity(h, h),
    "softplus": F.softplus,
}


def dtypes(context, function, shapes):
    inputs = [tensor(*shape, seed=i) for i, shape in enumerate(shapes)]
    with context:
        out = function(*inputs)
    out.float().sum().backward()
    return out.dtype, [None if x.grad is None else x.grad.dtype for x in inputs], out.float()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", SAME)
def test_as_torch(name, dtype):
    ours = dtypes(autocast(dtype), *SAME[name])
    theirs = dtypes(torch.autocast("cpu", dtype), *SAME[name])
    assert ours[:2] == theirs[:2] and ours[0] in (dtype, f32)
    torch.testing.assert_close(ours[2], theirs[2], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", IN_HALF_BY_TORCH)
def test_sums_and_powers_are_fp32_here(name, dtype):
    found = [
        dtypes(context, lambda x, y: IN_HALF_BY_TORCH[name](x @ y), [X, Y])[:2]
        for context in (autocast(dtype), torch.autocast("cpu", dtype))
    ]
    assert found == [(f32, [f32, f32]), (dtype, [f32, f32])]


def test_every_name_on_the_lists_is_one_of_torch():
    places = [torch, F, torch.Tensor, torch.linalg, torch.ops.aten, torch._VF]
    known = lambda name: any(hasattr(place, n) for place in places for n in (name, f"__{name}__"))
    assert not [name for name in WHITE | BLACK if not known(name)]


# ------------------------------------------------------------------------------------------------- numbers, not dtypes
SUMS = {
    "sum": torch.sum,
    "mean": torch.mean,
    "norm": torch.linalg.vector_norm,
    "softmax": lambda x: x.softmax(0),
    "logsumexp": lambda x: x.logsumexp(0),
    "square": lambda x: x.square().sum(),
    "var": torch.var,
    "layer_norm": lambda x: F.layer_norm(x, x.shape),
    "mse_loss": lambda x: F.mse_loss(x, torch.zeros_like(x)),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", SUMS)
def test_sums_are_accumulated_in_fp32(name, dtype):
    """60,000 terms near 2: their sum, and that of their squares, is out of fp16's range and out of bf16's grid."""
    x = (tensor(60_000) + 1.5).to(dtype).detach()
    with autocast(dtype):
        found = SUMS[name](x)
    torch.testing.assert_close(found.double(), SUMS[name](x.double()), rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("dtype", HALVES)
def test_batch_norm_adds_up_in_fp32(dtype):
    """On no list: its kernels take halves, and statistics in fp32, as they are."""
    x = (tensor(5000, 3) + 30).to(dtype).detach()
    mean = torch.zeros(3)
    var = torch.ones(3)
    with autocast(dtype):
        F.batch_norm(x, mean, var, training=True, momentum=1.0)
    torch.testing.assert_close(mean.double(), x.double().mean(0), rtol=1e-5, atol=0)
    torch.testing.assert_close(var.double(), x.double().var(0), rtol=1e-3, atol=0)


# ----------------------------------------------------------------------------------------------------- what it is for
def trained(net, loss, context):
    with context:
        made = loss(net)
    made.backward()
    return made


def test_activations_halve():
    """What backward reads, counted: with weights of few bytes beside them. Gradients of weights stay fp32."""
    net, x = mlp([64, 64, 64, 64, 8]), torch.rand(1024, 64)
    held = {}
    for name, context in {
        "fp32": autocast(enabled=False),
        "fp16": autocast(torch.float16, cache=False),
    }.items():
        net.zero_grad()
        run = measure(trained, net, lambda net: net(x).sum(), context)
        held[name] = run.timeline.at(run.phases[0][2])["activations"]
    numbers, loss = 4 * 64 * 1024, 4  # the input and three ReLUs' outputs
    weights = 2 * 64 * 64 + 8 * 64  # the first one's is not needed: the input has no gradient
    assert held["fp32"] == 4 * numbers + loss  # its weights are parameters
    assert held["fp16"] == 2 * (numbers + weights) + loss
    assert {p.grad.dtype for p in net.parameters()} == {f32}


def test_saved_tensors_are_half():
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: (seen.append(x.dtype), x)[1], lambda x: x
    ):
        with autocast(torch.float16):
            F.linear(tensor(3, 4), tensor(2, 4))
    assert seen == [torch.float16] * 2


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("attention", ["sdpa", "explicit"])
def test_a_gpt(dtype, attention):
    """Near the fp32 loss and gradients; the norms, the softmax and the loss are fp32, the products half."""
    tokens = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(0))
    net = gpt(2, 16, 2, 50, 8, attention=attention)
    loss = lambda net: next_token_loss(net(tokens[:, :-1]), tokens[:, 1:])
    exact = trained(net, loss, autocast(enabled=False))
    expected = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    found = trained(net, loss, autocast(dtype))
    assert found.dtype == f32 and abs(found / exact - 1) < 5e-3
    for p, grad in zip(net.parameters(), expected, strict=True):
        assert (p.grad - grad).norm() < 5e-2 * grad.norm()
    assert found != exact


def test_on_meta():
    net = gpt(1, 8, 2, 11, 4, device="meta")
    with autocast(torch.bfloat16):
        assert net(torch.zeros(2, 4, dtype=torch.long, device="meta")).dtype == torch.bfloat16


def test_recurrent_cells_and_modules():
    with autocast(torch.bfloat16):
        assert nn.LSTM(4, 4)(tensor(2, 3, 4))[0].dtype == torch.bfloat16
        assert nn.GRUCell(4, 4)(tensor(3, 4)).dtype == torch.bfloat16
        # its norm comes last
        assert nn.TransformerEncoderLayer(4, 2, 8)(tensor(2, 3, 4)).dtype == f32


# --------------------------------------------------------------------------------------------------------- its own API
def test_lists_are_the_users():
    x = tensor(4, 4)
    with autocast(black=BLACK | {F.gelu}, white=WHITE - {"mm"} | {torch.add}):
        assert (
            F.gelu(x.half()).dtype == f32
            and torch.mm(x, x).dtype == f32
            and (x + x).dtype == torch.float16
        )
        assert torch.add(x, x).dtype == (x @ x).dtype == torch.float16
    with pytest.raises(ValueError, match="on two lists at once: softmax"):
        autocast(white=WHITE | {"softmax"})
    with pytest.raises(ValueError, match="float64"):
        autocast(f64)


def test_a_custom_operator_by_its_name():
    with torch.library._scoped_library("minidist_amp_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
        op, x = torch.ops.minidist_amp_test.twice, tensor(3)
        with autocast(white=WHITE | {op}):
            assert op(x).dtype == op.default(x).dtype == torch.float16
        with autocast(white=WHITE | {"twice"}):
            assert op(x).dtype == torch.float16


def test_gray_takes_the_widest():
    x, h = tensor(4), tensor(4, dtype=torch.float16)
    with autocast(torch.float16):
        assert torch.dot(x, h).dtype == torch.addcmul(h, h, x).dtype == f32
        assert torch.dot(h, h).dtype == torch.float16
        # neither half holds the other
        assert torch.cat([h, tensor(2, dtype=torch.bfloat16)]).dtype == f32
    with pytest.raises(RuntimeError, match="same dtype"):
        torch.dot(x, h)


def test_in_place_and_out_are_left_alone():
    x, out = tensor(4, 4).detach(), torch.empty(4, 4)
    with autocast(torch.float16):
        assert torch.mm(x, x, out=out) is out and out.dtype == f32
        torch.testing.assert_close(x.clone().addmm_(x, x), x + out)
        assert torch.allclose(x.clone().pow_(2), x * x) and x.half().pow_(2).dtype == torch.float16
        with pytest.raises(RuntimeError, match="dtype"):
            x.half().addmm_(x, x)


def test_doubles_and_integers_are_left_alone():
    x, i = tensor(3, 3, dtype=f64), torch.arange(4).view(2, 2)
    with autocast(torch.float16):
        assert (x @ x).dtype == x.sum().dtype == f64 and (
            i @ i
        ).dtype == i.sum().dtype == torch.int64


def products(*inputs):
    """The dtypes of a product in nested autocasts, from the outside in and out again."""
    return (inputs[0] @ inputs[0]).dtype


def test_nesting():
    x, seen = tensor(2, 2), []
    outer = autocast(torch.float16)
    off = autocast(enabled=False)
    inner = autocast(torch.bfloat16)
    with outer:
        seen.append(products(x))
        with off:
            seen.append(products(x))
            with inner:
                seen.append(products(x))
                with outer:
                    seen.append(products(x))
                seen.append(products(x))
            seen.append(products(x))
        seen.append(products(x))
        with outer:
            seen.append(products(x))
        seen.append(products(x))
        assert active() is outer
    assert active() is None and products(x) == f32
    half, brain = HALVES
    assert seen == [half, f32, brain, half, brain, f32, half, half, half]


def test_composites_are_opened_for_the_innermost_only():
    """What multi_head_attention_forward calls is cast by the inner one, and by none where that is off."""
    function, shapes = SAME["multi_head_attention"]
    for inner, expected in (
        (autocast(torch.bfloat16), torch.bfloat16),
        (autocast(enabled=False), f32),
    ):
        with autocast(torch.float16):
            assert dtypes(inner, function, shapes)[0] == expected
            assert active().dtype == torch.float16 and not active()._silenced


def test_an_error_inside_leaves_nothing_behind():
    def fails():
        with autocast(), autocast(torch.bfloat16):
            F.multi_head_attention_forward(*[tensor(1)] * 3, 1, 1, *[None] * 5, 0.0, None, None)

    with pytest.raises((AttributeError, RuntimeError, AssertionError, ValueError)):
        fails()
    assert active() is None


# ---------------------------------------------------------------------------------------------------------- the cache
def casts(function, context):
    """How many casts `function` makes: copies to another dtype."""
    run = measure(lambda: function(context))
    return run.by_operator["_to_copy"].calls


@pytest.mark.parametrize(("cache", "number"), [(True, 1 + 3), (False, 2 * 3)])
def test_a_weight_is_cast_once(cache, number):
    x, w = tensor(2, 4).detach(), tensor(4, 4)

    def three_uses(context):
        with context:
            return [F.linear(x, w) for _ in range(3)]

    assert casts(three_uses, autocast(cache=cache)) == number


def test_the_cache_ends_with_the_context():
    w, context = tensor(4, 4), autocast()
    with context:
        with context:
            w @ w
        assert len(context._kept) == 1
    assert context._kept == {}


def test_a_changed_weight_is_cast_again():
    w = tensor(2, 2)
    with autocast(torch.float16):
        before = w @ w
        with torch.no_grad():
            w.zero_()
        assert before.any() and not (w @ w).any()


def test_a_cast_without_grad_is_not_kept():
    """torch had this wrong once: a first forward under no_grad left weights without gradients."""
    w = tensor(2, 2)
    with autocast(torch.float16):
        with torch.no_grad():
            w @ w
        (w @ w).float().sum().backward()
    assert w.grad is not None


def test_a_kept_cast_gives_all_uses_their_gradient():
    w, x = tensor(3, 3), tensor(2, 3).detach()
    grads = []
    for cache in (True, False):
        with autocast(torch.bfloat16, cache=cache):
            loss = (F.linear(x, w) + F.linear(2 * x, w)).sum()
        grads.append(torch.autograd.grad(loss, w)[0])
    torch.testing.assert_close(*grads, rtol=1e-2, atol=0)
    torch.testing.assert_close(grads[1], (3 * x.sum(0)).expand(3, 3), rtol=1e-2, atol=0)
