"""Mixed precision: autocast and LossScaler beside PyTorch's, the levels, masters beside fp32, and sharded states."""

import copy
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from benchmarks.amp import jobs, off, reached
from minidist.comm import World, launch
from minidist.models import gpt, mlp, next_token_loss, seeded_
from minidist.parallel.data import DataParallel
from minidist.parallel.zero import ShardedOptimizer
from minidist.study import measure
from minidist.train.amp import (
    BLACK,
    GRAY,
    LEVELS,
    WHITE,
    LossScaler,
    Masters,
    autocast,
    autocasts,
    exponents,
    halve_,
    lost,
    name_of,
    prepare,
)
from tests.largest import smallest
from tests.parallel.cases import replicas_equal

AUTOCAST_HALVES = [torch.float16, torch.bfloat16]
f32_autocast, f64 = torch.float32, torch.float64


def tensor(*shape, dtype=f32_autocast, seed=0):
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


@pytest.mark.parametrize("dtype", AUTOCAST_HALVES)
@pytest.mark.parametrize("name", SAME)
def test_as_torch(name, dtype):
    ours = dtypes(autocast(dtype), *SAME[name])
    theirs = dtypes(torch.autocast("cpu", dtype), *SAME[name])
    assert ours[:2] == theirs[:2] and ours[0] in (dtype, f32_autocast)
    torch.testing.assert_close(ours[2], theirs[2], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", AUTOCAST_HALVES)
@pytest.mark.parametrize("name", IN_HALF_BY_TORCH)
def test_sums_and_powers_are_fp32_here(name, dtype):
    found = [
        dtypes(context, lambda x, y: IN_HALF_BY_TORCH[name](x @ y), [X, Y])[:2]
        for context in (autocast(dtype), torch.autocast("cpu", dtype))
    ]
    assert found == [
        (f32_autocast, [f32_autocast, f32_autocast]),
        (dtype, [f32_autocast, f32_autocast]),
    ]


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


@pytest.mark.parametrize("dtype", AUTOCAST_HALVES)
@pytest.mark.parametrize("name", SUMS)
def test_sums_are_accumulated_in_fp32(name, dtype):
    """60,000 terms near 2: their sum, and that of their squares, is out of fp16's range and out of bf16's grid."""
    x = (tensor(60_000) + 1.5).to(dtype).detach()
    with autocast(dtype):
        found = SUMS[name](x)
    torch.testing.assert_close(found.double(), SUMS[name](x.double()), rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("dtype", AUTOCAST_HALVES)
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
        "fp16": autocast(torch.float16),
    }.items():
        net.zero_grad()
        run = measure(trained, net, lambda net: net(x).sum(), context)
        held[name] = run.timeline.at(run.phases[0][2])["activations"]
    numbers, loss = 4 * 64 * 1024, 4  # the input and three ReLUs' outputs
    weights = 2 * 64 * 64 + 8 * 64  # the first one's is not needed: the input has no gradient
    assert held["fp32"] == 4 * numbers + loss  # its weights are parameters
    assert held["fp16"] == 2 * (numbers + weights) + loss
    assert {p.grad.dtype for p in net.parameters()} == {f32_autocast}


def test_saved_tensors_are_half():
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: (seen.append(x.dtype), x)[1], lambda x: x
    ):
        with autocast(torch.float16):
            F.linear(tensor(3, 4), tensor(2, 4))
    assert seen == [torch.float16] * 2


@pytest.mark.parametrize("dtype", AUTOCAST_HALVES)
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
    assert found.dtype == f32_autocast and abs(found / exact - 1) < 5e-3
    for p, grad in zip(net.parameters(), expected, strict=True):
        assert (p.grad - grad).norm() < 5e-2 * grad.norm()
    assert found != exact


def test_autocast_on_meta():
    net = gpt(1, 8, 2, 11, 4, device="meta")
    with autocast(torch.bfloat16):
        assert net(torch.zeros(2, 4, dtype=torch.long, device="meta")).dtype == torch.bfloat16


def test_recurrent_cells_and_modules():
    with autocast(torch.bfloat16):
        assert nn.LSTM(4, 4)(tensor(2, 3, 4))[0].dtype == torch.bfloat16
        assert nn.GRUCell(4, 4)(tensor(3, 4)).dtype == torch.bfloat16
        # its norm comes last
        assert nn.TransformerEncoderLayer(4, 2, 8)(tensor(2, 3, 4)).dtype == f32_autocast


# --------------------------------------------------------------------------------------------------------- its own API
def test_lists_are_the_users():
    x = tensor(4, 4)
    with autocast(black=BLACK | {F.gelu}, white=WHITE - {"mm"} | {torch.add}):
        assert (
            F.gelu(x.half()).dtype == f32_autocast
            and torch.mm(x, x).dtype == f32_autocast
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
        assert torch.dot(x, h).dtype == torch.addcmul(h, h, x).dtype == f32_autocast
        assert torch.dot(h, h).dtype == torch.float16
        # neither half holds the other
        assert torch.cat([h, tensor(2, dtype=torch.bfloat16)]).dtype == f32_autocast
    with pytest.raises(RuntimeError, match="same dtype"):
        torch.dot(x, h)


def test_in_place_and_out_are_left_alone():
    x, out = tensor(4, 4).detach(), torch.empty(4, 4)
    with autocast(torch.float16):
        assert torch.mm(x, x, out=out) is out and out.dtype == f32_autocast
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
        assert autocasts()[-1] is outer
    assert not autocasts() and products(x) == f32_autocast
    half, brain = AUTOCAST_HALVES
    assert seen == [half, f32_autocast, brain, half, brain, f32_autocast, half, half, half]


def test_composites_are_opened_for_the_innermost_only():
    """What multi_head_attention_forward calls is cast by the inner one, and by none where that is off."""
    function, shapes = SAME["multi_head_attention"]
    for inner, expected in (
        (autocast(torch.bfloat16), torch.bfloat16),
        (autocast(enabled=False), f32_autocast),
    ):
        with autocast(torch.float16):
            assert dtypes(inner, function, shapes)[0] == expected
            assert autocasts()[0].dtype == torch.float16 and not autocasts()[0]._silenced


def test_an_error_inside_leaves_nothing_behind():
    def fails():
        with autocast(), autocast(torch.bfloat16):
            F.multi_head_attention_forward(*[tensor(1)] * 3, 1, 1, *[None] * 5, 0.0, None, None)

    with pytest.raises((AttributeError, RuntimeError, AssertionError, ValueError)):
        fails()
    assert not autocasts()


# ---------------------------------------------------------------------------------------------------------- the cache
def casts(function, context):
    """How many casts `function` makes: copies to another dtype."""
    run = measure(lambda: function(context))
    return run.by_operator["_to_copy"].calls


def test_a_weight_is_cast_once():
    x, w = tensor(2, 4).detach(), tensor(4, 4)

    def three_uses(context):
        with context:
            return [F.linear(x, w) for _ in range(3)]

    assert casts(three_uses, autocast()) == 1 + 3
    with torch.no_grad():
        assert casts(three_uses, autocast()) == 2 * 3


def test_the_cache_ends_with_the_context():
    w, context = tensor(4, 4), autocast()
    with context:
        with context:
            w @ w
        assert len(context._casts) == 1
    assert context._casts == {}


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
    with autocast(torch.bfloat16):
        loss = (F.linear(x, w) + F.linear(2 * x, w)).sum()
    (grad,) = torch.autograd.grad(loss, w)
    torch.testing.assert_close(grad, (3 * x.sum(0)).expand(3, 3), rtol=1e-2, atol=0)


# ------------------------------------------------------------
# The four levels: what is in which dtype, that they train, and that a planted inf skips one step on all ranks.


f16, f32_levels = torch.float16, torch.float32


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


def sgd_levels(params):
    return torch.optim.SGD(params, lr=0.125)


@pytest.mark.parametrize(
    ("level", "seen", "weight", "norm", "optimizer", "scale", "out"),
    [
        (
            "O0",
            [f32_levels, f32_levels, f32_levels],
            f32_levels,
            f32_levels,
            torch.optim.SGD,
            1.0,
            f32_levels,
        ),
        (
            "O1",
            [f32_levels, f16, f16],
            f32_levels,
            f32_levels,
            torch.optim.SGD,
            2.0**16,
            f32_levels,
        ),
        ("O2", [f16, f16, f16], f16, f32_levels, Masters, 2.0**16, f32_levels),
        ("O3", [f16, f16, f16], f16, f16, torch.optim.SGD, 1.0, f32_levels),
    ],
)
def test_what_is_in_which_dtype(level, seen, weight, norm, optimizer, scale, out):
    net = Net()
    amp = prepare(net, sgd_levels, level)
    with amp.autocast:
        y = amp.model(torch.ones(3, 4))
    assert net.seen == seen and y.dtype == out
    assert net.first.weight is net.again.weight and net.first.weight.dtype == weight
    assert net.norm.weight.dtype == net.norm.running_mean.dtype == norm
    assert (
        net.shift.dtype == (f16 if level in ("O2", "O3") else f32_levels)
        and net.count.dtype == torch.long
    )
    assert type(amp.optimizer) is optimizer and amp.scaler.get_scale() == scale
    assert len(list(LEVELS)) == 4


def test_bf16_needs_no_scale():
    assert [
        prepare(Net(), sgd_levels, level, torch.bfloat16).scaler.enabled for level in LEVELS
    ] == [False] * 4


def test_masters_start_as_the_halves():
    """Those of ranks with other seeds follow the broadcast of the halves; bits that it did not carry would differ."""
    amp = prepare(Net(), sgd_levels, "O2")
    assert all(
        map(torch.equal, amp.optimizer.masters(), [p.float() for p in amp.model.parameters()])
    )


def test_keywords_and_other_inputs_are_passed_on():
    class Takes(nn.Linear):
        def forward(self, x, index=None, more=None):
            assert x.dtype == more[0].dtype == f16 and index.dtype == torch.long
            return super().forward(x), {"index": index}

    amp = prepare(Takes(2, 2), sgd_levels, "O3")
    y, rest = amp.model(torch.ones(1, 2), index=torch.arange(2), more=[torch.ones(1)])
    assert y.dtype == f32_levels and rest["index"].dtype == torch.long


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
        amp = prepare(net, sgd_levels, name, dtype)
        with amp.autocast:
            loss = F.cross_entropy(amp.model(x), y)
        amp.step(loss)
        assert all(p.grad is None for p in net.parameters())
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
            mlp([4, 3], seed=2), sgd_levels, level, scaler=LossScaler(256.0, enabled=level != "O0")
        )
        params = getattr(amp.optimizer, "masters", amp.model.parameters)
        before = torch.cat([p.detach().flatten() for p in params()])
        with amp.autocast:
            loss = amp.model(torch.ones(2, 4)).sum()
        step_clipped(amp, loss, 0.5)
        moved[level] = (torch.cat([p.detach().flatten() for p in params()]) - before).norm().item()
    assert list(moved.values()) == pytest.approx([0.0625] * 3, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(level="O4"), "O0, O1, O2, O3 .* not 'O4'"),
        (dict(dtype=f32_levels), "float32"),
    ],
)
def test_levels_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        prepare(mlp([2, 2]), sgd_levels, **arguments)
    with pytest.raises(ValueError, match=r"parameters in \['torch.float64'\]"):
        prepare(mlp([2, 2], dtype=torch.float64), sgd_levels)


def test_halve_drops_gradients_of_another_dtype():
    net = mlp([2, 2])
    net(torch.ones(1, 2)).sum().backward()
    assert all(
        p.grad is None and p.dtype == torch.bfloat16
        for p in halve_(net, torch.bfloat16).parameters()
    )


# ------------------------------------------------------------------------------------------------------ several ranks
def parallel_levels(comm, level, bad_step, wrong=False):
    """Three samples a rank; those of the last rank overflow fp16 in one step."""
    amp = prepare(
        mlp([4, 6, 3], seed=comm.rank),
        sgd_levels,
        level,
        comm=comm,
        scaler=LossScaler(256.0, comm=comm),
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
    assert list(World(n).run(parallel_levels, level, 2)) == [(skips(2), 1, 128.0, True)] * n
    assert list(World(n).run(parallel_levels, level, None)) == [(skips(None), 0, 256.0, True)] * n


def test_also_over_processes():
    assert (
        list(launch(parallel_levels, 2, "O2", 1))
        == [([False, True, False, False], 1, 128.0, True)] * 2
    )


# ------------------------------------------------------------
# Names of functions, as a list has them and as a mode gets them.


class Listen(TorchFunctionMode):
    """Notes the name of each function."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.heard = name_of(func)
        return func(*args, **kwargs or {})


def test_no_name_is_on_two_lists():
    assert (
        not (WHITE & BLACK | WHITE & GRAY | BLACK & GRAY)
        and "matmul" in WHITE
        and "softmax" in BLACK
    )


x = torch.ones(2, 2)


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        (
            "matmul",
            [
                lambda: x @ x,
                lambda: x.matmul(x),
                lambda: torch.matmul(x, x),
                lambda: torch.linalg.matmul(x, x),
                lambda: torch.ops.aten.matmul(x, x),
                lambda: torch.ops.aten.matmul.default(x, x),
            ],
        ),
        (
            "pow",
            [
                lambda: x**2,
                lambda: x.pow(2),
                lambda: torch.pow(x, 2),
                lambda: torch.ops.aten.pow(x, 2),
            ],
        ),
        ("rpow", [lambda: 2**x]),
        ("rdiv", [lambda: 1 / x]),
        (
            "softmax",
            [
                lambda: F.softmax(x, 0),
                lambda: x.softmax(0),
                lambda: torch.softmax(x, 0),
                lambda: torch.special.softmax(x, 0),
                lambda: torch.nn.Softmax(0)(x),
            ],
        ),
        ("norm", [lambda: x.norm(), lambda: torch.norm(x), lambda: torch.linalg.norm(x)]),
        ("mm", [lambda: torch.mm(x, x), lambda: x.mm(x)]),
        ("pow_", [lambda: x.clone().pow_(2)]),
        ("addmm_", [lambda: x.clone().addmm_(x, x)]),
    ],
)
def test_one_name_for_all_spellings(name, calls):
    for call in calls:
        with Listen() as listen:
            call()
        assert listen.heard == name_of(name) == name


# ------------------------------------------------------------
# Masters beside the same optimizer on fp32 parameters, with any optimizer, saved and loaded, and in parallel.


MASTERS_HALVES = [torch.float16, torch.bfloat16]


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
@pytest.mark.parametrize("dtype", MASTERS_HALVES)
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
    back.load_state_dict(copy.deepcopy(serial.state_dict()) | {"masters": params})

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
        Masters(net(torch.float16).parameters(), Signs).load_state_dict(
            {"masters": [torch.ones(1)]}
        )


def parallel_masters(comm, first):
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
    serial = World(1).run(parallel_masters, first)[0][1]
    run = World(2).run(parallel_masters, first)
    assert [same for same, _ in run] == [True, True]
    for ours, expected in zip(run[0][1], serial, strict=True):
        # three steps of 1e-3, with gradients rounded to 11 bits
        assert (ours - expected).abs().max() < 2e-4


def on_meta_masters(comm):
    module = mlp([4, 6, 3], dtype=torch.float16, device="meta")
    optimizer, scaler = (
        Masters(module.parameters(), torch.optim.AdamW, lr=1e-3),
        LossScaler(comm=comm),
    )
    scaler.scale(module(torch.empty(2, 4, dtype=torch.float16, device="meta")).sum()).backward()
    scaler.step(optimizer)
    return [m.dtype for m in optimizer.masters()]


def test_masters_on_meta():
    assert World(1, device="meta").run(on_meta_masters)[0] == [torch.float32] * 4


# ------------------------------------------------------------
# LossScaler: step by step with torch.amp.GradScaler, on one rank and on several, and what is refused.


INF, NAN = math.inf, math.nan
# no powers of two: rounding counts
FACTORS = dict(growth_factor=1.7, backoff_factor=0.3, growth_interval=3)


class Theirs(torch.amp.GradScaler):
    """PyTorch's, with our names for the arguments."""

    def __init__(self, init=2.0**16, **kwargs):
        super().__init__("cpu", init_scale=init, **kwargs)


def model(dtype=torch.float32):
    return mlp([4, 5, 2], dtype=dtype)


def train(make, planted, optimizers=1, clip=None, **options):
    """What is seen after each step, where `planted` is added to a gradient of the optimizer that it names."""
    scaler, net = make(init=2.0**10, **options), model()
    layers = [net[0], net[2]] if optimizers == 2 else [net]
    steppers = [torch.optim.Adam(layer.parameters(), lr=0.1) for layer in layers]
    random, seen = torch.Generator().manual_seed(0), []
    for bad in planted:
        for optimizer in steppers:
            optimizer.zero_grad()
        scaler.scale(net(torch.randn(3, 4, generator=random)).square().mean()).backward()
        if bad is not None:
            which, value = bad
            list(layers[which].parameters())[-1].grad[0] = value
        for optimizer in steppers:
            if clip:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            scaler.step(optimizer)
        scaler.update()
        seen.append(
            (
                scaler.state_dict(),
                [p.detach().clone() for p in net.parameters()],
                [len(o.state) for o in steppers],
            )
        )
    return seen


PLANTED = {
    "none": [None] * 8,
    "one": [None, None, (0, INF), None, None, None, None],
    "at first": [(0, NAN), (0, -INF), None, None, None, None],
    "in a row": [None, (0, INF), (0, INF), None, (0, NAN), None, None, None, None],
}


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
@pytest.mark.parametrize(
    "options", [{}, FACTORS, {"enabled": False}], ids=["defaults", "factors", "off"]
)
@pytest.mark.parametrize("clip", [None, 0.05])
def test_step_by_step_as_torch(planted, options, clip):
    planted = [None] * 4 if options == {"enabled": False} else planted
    ours, theirs = (train(make, planted, clip=clip, **options) for make in (LossScaler, Theirs))
    for (state, params, steps), (their_state, their_params, their_steps) in zip(
        ours, theirs, strict=True
    ):
        assert (state, steps) == (their_state, their_steps)
        assert all(map(torch.equal, params, their_params))
    assert len(ours) == len(planted)


@pytest.mark.parametrize("which", [0, 1])
def test_two_optimizers_as_torch(which):
    """The one with the inf is skipped, the other steps, and the scale backs off once."""
    planted = [None, (which, INF), None, None, None]
    ours, theirs = (train(make, planted, optimizers=2, **FACTORS) for make in (LossScaler, Theirs))
    for (state, params, steps), (their_state, their_params, their_steps) in zip(
        ours, theirs, strict=True
    ):
        assert (state, steps) == (their_state, their_steps)
        assert all(map(torch.equal, params, their_params))
    assert ours[1][0]["scale"] == pytest.approx(0.3 * 2**10, rel=1e-6)


def test_the_scale_stops_at_the_largest_of_fp32_as_torch():
    found = [
        train(make, [None] * 120, growth_factor=4.0, growth_interval=1)[-1][0]
        for make in (LossScaler, Theirs)
    ]
    assert found[0] == found[1]
    assert math.isfinite(found[0]["scale"])


def test_the_state_goes_over_to_torch_and_back():
    ours = LossScaler(**FACTORS)
    ours.load_state_dict(train(Theirs, PLANTED["one"], **FACTORS)[-1][0])
    theirs = Theirs()
    theirs.load_state_dict(ours.state_dict())
    assert (
        theirs.state_dict()
        == ours.state_dict()
        == train(LossScaler, PLANTED["one"], **FACTORS)[-1][0]
    )
    assert LossScaler(enabled=False).state_dict() == {}
    with pytest.raises(ValueError, match="0 of its 5 entries"):
        ours.load_state_dict({})


def test_a_static_scale_skips_and_stays():
    before, bad, after = train(LossScaler, [None, (0, INF), None], dynamic=False)
    assert [s["scale"] for s, *_ in (before, bad, after)] == [2**10] * 3
    assert all(map(torch.equal, before[1], bad[1]))
    assert not all(map(torch.equal, bad[1], after[1]))


def test_scale_as_torch():
    for x in (torch.ones(2), torch.ones(1, dtype=torch.float16)):
        ours, theirs = (make(init=8.0).scale(x) for make in (LossScaler, Theirs))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert LossScaler(enabled=False).scale(x) is x and LossScaler(enabled=False).get_scale() == 1


def test_the_smallest_scale():
    """Half of 2¹⁰ is 2⁹, below which it may not fall; the steps are skipped all the same, and it grows again."""
    planted = [(0, INF), (0, INF), (0, INF), None, None]
    states = train(LossScaler, planted, min_scale=300.0, growth_interval=2)
    assert [s["scale"] for s, *_ in states] == [512, 300, 300, 300, 600]
    assert all(map(torch.equal, states[0][1], states[2][1]))
    with pytest.raises(ValueError, match=r"at most the first one, 4\.0: not 8\.0"):
        LossScaler(4.0, min_scale=8.0)


# ------------------------------------------------------------------------------------------------------ several ranks
def replicas(comm, bad_rank, agree=True):
    """Gradients differ between ranks, as those of parts of a model do; one rank's has an inf in the second step."""
    torch.manual_seed(comm.rank)
    net, scaler = (
        nn.Linear(3, 2),
        LossScaler(init=4.0, growth_interval=2, comm=comm if agree else None),
    )
    optimizer, seen = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), []
    for step in range(5):
        optimizer.zero_grad()
        scaler.scale(net(torch.ones(1, 3)).sum()).backward()
        if step == 1 and comm.rank == bad_rank:
            net.weight.grad[0, 0] = INF
        before = net.weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        seen.append((torch.equal(before, net.weight), scaler.get_scale()))
    return seen, scaler.skipped


EXPECTED = [(False, 4.0), (True, 2.0), (False, 2.0), (False, 4.0), (False, 4.0)], 1


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_all_ranks_skip_the_same_step_and_no_other(n):
    for bad_rank in {0, n - 1}:
        assert list(World(n).run(replicas, bad_rank)) == [EXPECTED] * n
    assert (
        list(World(n).run(replicas, n))
        == [([(False, s) for s in (4.0, 8.0, 8.0, 16.0, 16.0)], 0)] * n
    )


def test_scaler_over_processes():
    assert list(launch(replicas, 2, 1)) == [EXPECTED] * 2


def test_without_agreement_only_one_skips():
    first, other = World(2).run(replicas, 0, agree=False)
    assert first == EXPECTED and other[1] == 0


def messages(comm, with_gradient):
    """A rank without a gradient of its own joins in."""
    net, scaler = nn.Linear(3, 2), LossScaler(comm=comm)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    if comm.rank in with_gradient:
        scaler.scale(net(torch.ones(1, 3)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    return scaler.skipped


@pytest.mark.parametrize("with_gradient", [[0, 1, 2], [1], []])
def test_one_all_reduce_of_four_bytes(with_gradient):
    run = World(3).run(messages, with_gradient)
    assert list(run) == [0, 0, 0]
    assert {m.nbytes for m in run.trace} <= {0, 4} and sum(m.nbytes for m in run.trace) == 2 * 2 * 4


def on_meta_scaler(comm):
    net, scaler = mlp([4, 3], device="meta"), LossScaler(comm=comm)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler.scale(net(torch.empty(2, 4, device="meta")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    return scaler.skipped, scaler._good


def test_on_meta_no_step_is_skipped():
    assert list(World(2, device="meta").run(on_meta_scaler)) == [(0, 1)] * 2


# ------------------------------------------------------------------------------------------------------------ refused
@pytest.mark.parametrize(
    "wrong",
    [
        {"growth_factor": 1.0},
        {"backoff_factor": 1.0},
        {"backoff_factor": 0.0},
        {"growth_interval": 0},
        {"init": 0.0},
        {"init": INF},
    ],
)
def test_factors_that_cannot_be(wrong):
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        LossScaler(**wrong)


def ready(dtype=torch.float32):
    net, scaler = model(dtype), LossScaler()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler.scale(net(torch.ones(1, 4, dtype=dtype)).sum()).backward()
    return scaler, optimizer


def test_the_order_of_calls():
    scaler, optimizer = ready()
    with pytest.raises(RuntimeError, match="no optimizer"):
        scaler.update()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="unscaled since the last update"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    for again in (scaler.unscale_, scaler.step):
        with pytest.raises(RuntimeError, match="stepped since the last update"):
            again(optimizer)
    scaler.update()
    with pytest.raises(RuntimeError, match="closure"):
        scaler.step(optimizer, closure=lambda: 0)
    optimizer.zero_grad()
    with pytest.raises(ValueError, match="none of the optimizer's parameters has a gradient"):
        scaler.step(optimizer)


def test_gradients_in_fp16_are_refused():
    with pytest.raises(ValueError, match=r"4 of 4 gradients are in fp16.*Masters"):
        LossScaler.unscale_(*ready(torch.float16))
    LossScaler.unscale_(*ready(torch.bfloat16))


def test_a_scale_that_is_of_no_use_ends_in_an_error():
    with pytest.raises(RuntimeError, match="whatever S is"):
        train(LossScaler, [(0, NAN)] * 200)


def test_a_sparse_gradient_and_an_empty_one():
    table, empty = nn.Embedding(5, 2, sparse=True), nn.Parameter(torch.empty(0, 3))
    optimizer, scaler = torch.optim.SGD([table.weight, empty], lr=1.0), LossScaler(init=8.0)
    before = table.weight.detach().clone()
    scaler.scale(table(torch.tensor([1, 1])).sum() + empty.sum()).backward()
    scaler.step(optimizer)
    assert torch.allclose(
        before - table.weight, torch.tensor([[0.0, 0.0], [2.0, 2.0], [0, 0], [0, 0], [0, 0]])
    )


def test_float64_may_be_large():
    p, scaler = nn.Parameter(torch.ones(2, dtype=torch.float64)), LossScaler(init=2.0)
    p.grad = torch.full_like(p, 1e300)
    scaler.step(torch.optim.SGD([p], lr=1e-300))
    assert p.tolist() == pytest.approx([0.5, 0.5]) and scaler.skipped == 0


def test_masters_give_their_gradients_in_fp32():
    net, scaler = model(torch.float16), LossScaler(init=2.0**20)
    optimizer = Masters(net.parameters(), torch.optim.SGD, lr=0.1)
    scaler.scale(net(torch.ones(1, 4, dtype=torch.float16)).float().sum() * 2.0**-28).backward()
    scaler.unscale_(optimizer)
    assert {p.grad.dtype for p in net.parameters()} == {torch.float32}
    assert net[2].bias.grad.tolist() == [2.0**-28] * 2  # fp16 has no such number


# ------------------------------------------------------------
# Counts of exponents and of lost updates, against a loop over the numbers.


SEE_HALVES = [torch.float16, torch.bfloat16]


def numbers(seed=0):
    random = torch.Generator().manual_seed(seed)
    powers = torch.randint(-45, 30, (400,), generator=random)
    x = torch.randn(400, generator=random, dtype=torch.float64) * torch.exp2(powers)
    return torch.cat(
        [
            x,
            torch.tensor(
                [
                    0.0,
                    -0.0,
                    math.inf,
                    -math.inf,
                    math.nan,
                    1.0,
                    -2.0,
                    65504.0,
                    65519.0,
                    65520.0,
                    2.0**-14,
                    2.0**-24,
                    2.0**-25,
                    1.01 * 2.0**-25,
                ]
            ),
        ]
    )


@pytest.mark.parametrize("dtype", SEE_HALVES)
@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_counted_one_by_one(dtype, scale):
    x, tiny = numbers() * scale, torch.finfo(dtype).tiny
    kinds, powers = (
        dict.fromkeys(("zeros", "bad", "normal", "subnormal", "underflow", "overflow"), 0),
        {},
    )
    for value in x.tolist():
        held = torch.tensor(value, dtype=torch.float64).to(dtype).item()
        if not math.isfinite(value):
            kind = "bad"
        elif value == 0:
            kind = "zeros"
        else:
            e = math.frexp(abs(value))[1] - 1
            assert 2.0**e <= abs(value) < 2.0 ** (e + 1)
            powers[e] = powers.get(e, 0) + 1
            kind = (
                "underflow"
                if held == 0
                else "overflow"
                if math.isinf(held)
                else "subnormal"
                if abs(held) < tiny
                else "normal"
            )
        kinds[kind] += 1
    found = exponents(numbers(), dtype, scale)
    assert found.counts == dict(sorted(powers.items())) and list(found.counts) == sorted(powers)
    assert {kind: getattr(found, kind) for kind in kinds} == kinds
    assert found.total == len(x) and found.dtype == dtype
    if dtype == torch.float16:
        assert smallest(kinds.values()) > 1


def test_the_limits_of_fp16():
    found = exponents(
        [torch.tensor([65519.0, 65520.0, 2.0**-14]), None, torch.tensor([2.0**-25, 2.0**-24 * 1.0])]
    )
    assert found[3:] == (0, 2, 1, 1, 1)
    assert found.counts == {-25: 1, -24: 1, -14: 1, 15: 2}


def test_of_halves_and_of_nothing():
    assert exponents(torch.tensor([2.0**-24], dtype=torch.float16)).counts == {-24: 1}
    assert exponents([]).total == 0 and lost([], []) == 0


@pytest.mark.parametrize("dtype", SEE_HALVES)
def test_lost_updates_one_by_one(dtype):
    random = torch.Generator().manual_seed(3)
    w = torch.randn(300, generator=random)
    u = torch.randn(300, generator=random) * torch.exp2(
        torch.randint(-20, 0, (300,), generator=random)
    )
    u[:50] = 0
    held = w.to(dtype)
    stays = [(held[i].double() + u[i].double()).to(dtype) == held[i] for i in range(50, 300)]
    assert 0.2 < lost([u[:10], u[10:]], [w], dtype) == sum(stays) / 250 < 0.8


def test_half_a_step_is_lost():
    one = torch.ones(4)
    up = torch.tensor([2.0**-11, 2.0**-11 * 1.01, 2.0**-10, 0.0])
    assert lost(up, one) == 1 / 3
    assert lost(up, one, torch.bfloat16) == 1
    # exactly half a step goes to the even neighbour, which is the weight
    assert lost(up, 2 * one) == 1


def test_see_refused():
    with pytest.raises(ValueError, match="2 updates do not fit 3 weights"):
        lost(torch.zeros(2), torch.zeros(3))
    with pytest.raises(NotImplementedError, match="meta"):
        exponents([torch.zeros(2), torch.zeros(2, device="meta")])


# ------------------------------------------------------------
# The scaler, levels and autocast with sharded states: each rank sees only its own gradients, and all skip together.


STEPS, WIDTHS = 5, [4, 6, 5, 3]


def sgd_sharded(params):
    return torch.optim.SGD(params, lr=0.3, momentum=0.9)


def batch(step):
    random = torch.Generator().manual_seed(step)
    return torch.randn(6, WIDTHS[0], generator=random), torch.arange(6) % 3


def step_clipped(amp, loss, clip):
    """`amp.step(loss)`, with the gradients clipped between."""
    amp.scaler.scale(loss).backward()
    if clip is not None:
        amp.scaler.unscale_(amp.optimizer)
        if isinstance(amp.optimizer, ShardedOptimizer):
            amp.optimizer.clip_grad_norm_(clip)
        else:
            nn.utils.clip_grad_norm_(amp.model.parameters(), clip)
    amp.scaler.step(amp.optimizer)
    amp.scaler.update()
    amp.optimizer.zero_grad()


def serial(bad_step, clip):
    """Losses of a serial run at O2; one step has an inf."""
    amp, losses = prepare(mlp(WIDTHS), sgd_sharded, "O2", scaler=LossScaler(256.0)), []
    for step in range(STEPS):
        x, y = batch(step)
        loss = F.cross_entropy(amp.model(x), y)
        losses.append(loss.item())
        step_clipped(amp, loss * (math.inf if step == bad_step else 1), clip)
    return losses


def sharded(comm, stage, bad_step, clip):
    """The same over ranks, with the inf in one gradient of the last rank."""
    make = lambda params: ShardedOptimizer(
        params, sgd_sharded, comm, stage=stage, master_dtype=torch.float32
    )
    scaler = LossScaler(256.0, comm=comm)
    amp = prepare(mlp(WIDTHS, seed=comm.rank), make, "O3", scaler=scaler)
    losses = []
    skips = []
    first = next(amp.model.parameters())
    for step in range(STEPS):
        x, y = (t[comm.rank :: comm.size] for t in batch(step))
        bad = step == bad_step and comm.rank == comm.size - 1
        hook = first.register_hook(lambda grad: grad * math.inf) if bad else None
        loss = F.cross_entropy(amp.model(x), y)
        before, skipped = first.detach().clone(), amp.scaler.skipped
        step_clipped(amp, loss, clip)
        if hook:
            hook.remove()
        skips.append(torch.equal(before, first))
        assert skips[-1] == (amp.scaler.skipped > skipped)
        losses.append(loss.item())
    mine = sum(m.numel() for group in amp.optimizer._inner.param_groups for m in group["params"])
    return losses, skips, replicas_equal(comm, list(amp.model.parameters())), mine


def check(results, n, bad_step, clip):
    expected = serial(bad_step, clip)
    losses = [sum(rank) / n for rank in zip(*(r[0] for r in results), strict=True)]
    assert losses == pytest.approx(expected, rel=4e-3)
    for _, skips, same, _ in results:
        assert same and skips == [step == bad_step for step in range(STEPS)]
    assert sum(r[3] for r in results) == sum(p.numel() for p in mlp(WIDTHS).parameters())


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_sharded_optimizer_skips_on_all_ranks(n, stage, clip):
    check(World(n).run(sharded, stage, 2, clip), n, 2, clip)


def test_sharded_over_processes():
    check(launch(sharded, 2, 2, 1, None), 2, 1, None)


def test_the_clip_counts():
    """The bound above would let a forgotten clip, or one of scaled gradients, pass if these were alike."""
    assert abs(serial(2, 0.1)[-1] / serial(2, None)[-1] - 1) > 2e-2


def on_meta_sharded(comm):
    make = lambda params: ShardedOptimizer(
        params, sgd_sharded, comm, stage=2, master_dtype=torch.float32
    )
    amp = prepare(mlp(WIDTHS, device="meta"), make, "O3", scaler=LossScaler(comm=comm))
    step_clipped(amp, amp.model(torch.empty(2, 4, device="meta")).sum(), 1.0)
    return amp.scaler.skipped


def test_sharded_on_meta():
    assert list(World(2, device="meta").run(on_meta_sharded)) == [0, 0]


# ------------------------------------------------------------
# Scaled fp16 reaches the fp32 loss, and without the scaler or without masters it does not: small, of the benchmark.


@pytest.fixture(autouse=True)
def one_thread():
    """The models are too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("name", "steps", "seeds", "worse"), [("digits", 40, (0, 1, 2), 1.0), ("gpt", 30, (0,), 0.05)]
)
def test_scaled_fp16_reaches_the_fp32_loss(name, steps, seeds, worse):
    job = jobs()[name]
    found = {
        way: [reached(job, way, seed, steps) for seed in seeds]
        for way in ("fp32", "O2", "O2, no scaler", "O3")
    }
    exact = found["fp32"]
    assert off(found["O2"], exact) < 0.01 < off(found["O2, no scaler"], exact)
    assert all(b > (1 + worse) * a for a, b in zip(exact, found["O2, no scaler"], strict=True))
    assert smallest(found["O2, no scaler"]) > max(exact)
    assert all(map(math.isnan, found["O3"]))  # Adam divides by eps, which is 0 in fp16


def test_updates_are_lost_where_all_is_half():
    """bf16 with a mean loss and plain SGD: nothing is wrong with the gradients, and O3 learns far less than O2."""
    job = jobs()["updates"]
    exact, with_masters, without = (
        reached(job, way, 0, 200) for way in ("fp32", "O2, bf16", "O3, bf16")
    )
    assert abs(with_masters / exact - 1) < 0.01 and without > 1.05 * exact


def test_what_is_lost_is_seen():
    """The counts tell it before training does: gradients of the first, updates of the other."""
    job, share = jobs()["gpt"], {}
    net = job.model(0)
    job.loss(net(job.judge[0][:8]), job.judge[1][:8]).backward()
    for scale in (1.0, 2.0**16):
        seen = exponents([p.grad for p in net.parameters()], torch.float16, scale)
        share[scale] = (seen.underflow + seen.subnormal) / (seen.total - seen.zeros)
    assert share[1.0] > 0.99 and share[2.0**16] < 0.2

    job = jobs()["updates"]
    net = job.model(0)
    job.loss(net(job.judge[0]), job.judge[1]).backward()
    updates = [0.01 * p.grad for p in net.parameters()]
    assert lost(updates, net.parameters(), torch.bfloat16) > 0.8
    assert lost(updates, net.parameters(), torch.float32) < 0.05


def test_a_copy_of_masters_with_a_scheduler_steps_the_copy():
    model = nn.Linear(2, 2).bfloat16()
    optimizer = Masters(model.parameters(), torch.optim.SGD, lr=1.0)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)  # puts its own `step` in
    model, optimizer = copy.deepcopy((model, optimizer))
    before = model.weight.detach().clone()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert not torch.equal(model.weight, before)
    pickle.dumps(optimizer)
