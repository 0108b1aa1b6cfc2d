"""Fused operators: against PyTorch's own and the naive ones, what they cost, and as operators that the dispatcher knows."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from minidist.comm import Cluster, World, launch
from minidist.study.meter import measure
from minidist.train import fuse
from minidist.train.flat_optim import FlatAdamW
from tests.size import FULL
from tests.train.fuse_against import assert_same, assert_wide, both, randoms, work

TOKENS = torch.tensor([1, 0, 4, 2, 4, 3])
SHIFT = torch.tensor([3, -100, 0, 6, 2, 1])


def causal(q, k, v):
    return fuse.attention(q, k, v, causal=True, tile=4)


def torchs_causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def torchs_norm(x, w, b):
    return F.layer_norm(x, x.shape[-1:], w, b)


# By name: the operator, PyTorch's own, the naive one, and shapes of the inputs.
CASES = {
    "add3": (fuse.add3, lambda a, b, c: a + b + c, fuse.add3_plain, [(6, 5)] * 3),
    "bias_gelu": (
        fuse.bias_gelu,
        lambda x, b: F.gelu(x + b),
        fuse.bias_gelu_plain,
        [(2, 3, 5), (5,)],
    ),
    "layer_norm": (
        fuse.layer_norm,
        torchs_norm,
        fuse.layer_norm_plain,
        [(2, 3, 5), (5,), (5,)],
    ),
    "softmax": (fuse.softmax, lambda x: x.softmax(-1), fuse.softmax_plain, [(2, 3, 5)]),
    "cross_entropy": (
        lambda x: fuse.cross_entropy(x, TOKENS, "none"),
        lambda x: F.cross_entropy(x, TOKENS, reduction="none"),
        lambda x: fuse.cross_entropy_plain(x, TOKENS),
        [(6, 5)],
    ),
    "attention": (
        lambda q, k, v: fuse.attention(q, k, v, tile=4),
        F.scaled_dot_product_attention,
        fuse.attention_plain,
        [(2, 9, 4)] * 3,
    ),
    "causal": (
        causal,
        torchs_causal,
        lambda q, k, v: fuse.attention_plain(q, k, v, True),
        [(2, 9, 4)] * 3,
    ),
}
EACH = pytest.mark.parametrize("name", CASES)
HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
DEVICES = pytest.mark.parametrize("device", ["cpu", "meta"])


# ------------------------------------------------------------
# All of them.


@EACH
def test_equals_torch_and_the_naive_one(name):
    ours, theirs, plain, shapes = CASES[name]
    assert_same(ours, theirs, randoms(*shapes))
    assert_same(plain, theirs, randoms(*shapes))


@EACH
def test_the_gradient(name):
    ours, _, _, shapes = CASES[name]
    assert torch.autograd.gradcheck(ours, [x.requires_grad_() for x in randoms(*shapes)])


@EACH
def test_inputs_that_lie_otherwise(name):
    ours, theirs, _, shapes = CASES[name]
    turned = [shape[::-1] for shape in shapes]
    assert_same(
        lambda *xs: ours(*(x.permute(*range(x.dim())[::-1]) for x in xs)),
        lambda *xs: theirs(*(x.permute(*range(x.dim())[::-1]) for x in xs)),
        randoms(*turned),
    )


LONG = {
    "add3": (1, [(50,)] * 3),
    "bias_gelu": (1, [(600, 5), (5,)]),
    "layer_norm": (1, [(600, 16), (16,), (16,)]),
    "softmax": (1, [(20, 300)]),
    "cross_entropy": (1, [(6, 300)]),
    "attention": (32, [(2, 70, 8)] * 3),  # D, from o
    "causal": (32, [(2, 70, 8)] * 3),
}


@EACH
@HALVES
def test_half_precision_is_worked_on_in_float32(name, dtype):
    ours, theirs, _, _ = CASES[name]
    kept, shapes = LONG[name]
    assert_wide(ours, theirs, randoms(*shapes, dtype=dtype), kept)


# ------------------------------------------------------------
# add3


@HALVES
def test_add3_rounds_once(dtype):
    a, b, c = randoms((500,), (500,), (500,), dtype=dtype)
    exact = (a.double() + b.double() + c.double()).to(dtype)
    assert torch.equal(fuse.add3(a, b, c), exact)
    assert not torch.equal(a + b + c, exact)


@DEVICES
def test_cost_of_add3(device):
    N = 1000
    dy, *inputs = (torch.ones(N, device=device) for _ in range(4))
    for x in inputs:
        x.requires_grad_()
    mine = work(both(fuse.add3), dy, *inputs)
    theirs = work(both(fuse.add3_plain), dy, *inputs)
    assert mine[0] == (1, 4 * N * 4)
    assert theirs[0] == (2, 6 * N * 4)
    assert mine[1] == theirs[1] == (0, 0)


@pytest.mark.parametrize(
    "other", [torch.ones(4), torch.ones(3).half(), torch.ones(3, device="meta")]
)
def test_what_add3_refuses(other):
    with pytest.raises(ValueError, match="c must be as a"):
        fuse.add3(torch.ones(3), torch.ones(3), other)


# ------------------------------------------------------------
# Bias and GELU, and layer norm

ROWS, H = 24, 40
N = ROWS * H


@pytest.mark.parametrize("shape", [(7,), (0, 7), (1, 1)])
@pytest.mark.parametrize("name", ["bias_gelu", "layer_norm"])
def test_other_rows(name, shape):
    ours, theirs, _, shapes = CASES[name]
    assert_same(ours, theirs, randoms(shape, *[shape[-1:]] * (len(shapes) - 1)))


def test_bias_gelu_of_large_numbers():
    x = torch.tensor([[-1e3, -40.0, 0.0, 40.0, 1e3]], dtype=torch.float64)
    assert_same(*CASES["bias_gelu"][:2], (x, torch.zeros(5, dtype=torch.float64)))


@DEVICES
def test_cost_of_bias_gelu(device):
    dy, x, b = (torch.ones(s, device=device) for s in ((ROWS, H), (ROWS, H), (H,)))
    inputs = x.requires_grad_(), b.requires_grad_()
    mine, theirs = (work(both(fn), dy, *inputs) for fn in CASES["bias_gelu"][:2])
    assert mine[0] == (1, 4 * (2 * N + H))
    assert theirs[0] == (2, 4 * (4 * N + H))
    assert mine[1] == (1, 4 * (3 * N + 2 * H))
    # gelu_backward reads two and writes one; the sum for the bias reads one
    assert theirs[1] == (2, 4 * (4 * N + H))


def test_bias_gelu_keeps_its_input_alone():
    x, b = torch.ones(ROWS, H, requires_grad=True), torch.ones(H, requires_grad=True)
    kept = measure(lambda: fuse.bias_gelu(x, b)).timeline.at(float("inf"))
    assert sum(kept.values()) == 4 * (2 * N + H)  # x, b and the result
    kept = measure(lambda: F.gelu(x + b)).timeline.at(float("inf"))
    assert sum(kept.values()) == 4 * (3 * N + H)


def test_what_rows_refuse():
    with pytest.raises(ValueError, match=r"bias must be \(3,\)"):
        fuse.bias_gelu(torch.ones(2, 3), torch.ones(2))
    with pytest.raises(ValueError, match="floating"):
        fuse.bias_gelu(torch.ones(2, 3).long(), torch.ones(3).long())
    with pytest.raises(ValueError, match=r"weight must be \(3,\)"):
        fuse.layer_norm(torch.ones(2, 3), torch.ones(2), torch.ones(3))
    for x in (torch.tensor(1.0), torch.ones(3).long(), torch.ones(3, 0)):
        with pytest.raises(ValueError, match="x must be"):
            fuse.softmax(x)


def test_epsilon():
    assert_same(
        lambda *a: fuse.layer_norm(*a, eps=0.3),
        lambda x, w, b: F.layer_norm(x, (6,), w, b, 0.3),
        randoms((4, 6), (6,), (6,)),
    )


def test_a_large_mean_costs_no_digits():
    x, w, b = randoms((4, 64), (64,), (64,))
    found = fuse.layer_norm((x + 1e4).float(), w.float(), b.float())
    torch.testing.assert_close(
        found.double(), torchs_norm((x + 1e4).float().double(), w, b), rtol=0, atol=2e-3
    )


@DEVICES
def test_cost_of_layer_norm(device):
    dy, x, w, b = (torch.ones(s, device=device) for s in ((ROWS, H), (ROWS, H), (H,), (H,)))
    inputs = [t.requires_grad_() for t in (x, w, b)]
    (calls, nbytes), backward = work(both(fuse.layer_norm), dy, *inputs)
    assert (calls, nbytes) == (1, 4 * (2 * N + 2 * H + 2 * ROWS))
    profile = measure(both(fuse.layer_norm), dy, *inputs)
    assert profile.by_operator["layer_norm_backward"][:3] == (1, 0, 4 * (3 * N + 3 * H + 2 * ROWS))
    plain = work(both(fuse.layer_norm_plain), dy, *inputs)
    assert plain[0][0] == 9 and plain[0][1] > 5 * nbytes
    assert plain[1][0] > 3 * backward[0] and plain[1][1] > 3 * backward[1]


# ------------------------------------------------------------
# Softmax and cross-entropy

PART = 4096


@pytest.mark.parametrize("shape", [(7,), (0, 7), (4, 1), (2, PART + 5)])
def test_other_rows_of_softmax(shape):
    assert_same(*CASES["softmax"][:2], randoms(shape))


@pytest.mark.parametrize("part", [1, 3, 10, 64])
def test_parts_of_any_size_give_one_normalizer(part):
    (x,) = randoms((6, 10))
    x[1] += torch.arange(10) * 100.0  # each part has a larger peak than those before
    x[2] -= torch.arange(10) * 100.0
    m, s = fuse.normalizer(x, part)
    assert torch.equal(m, x.amax(-1))
    torch.testing.assert_close(m + s.log(), x.logsumexp(-1), rtol=1e-13, atol=1e-13)


def test_merging_by_hand():
    m, s = fuse.merge(torch.tensor([[0.0, 1.0]]), torch.tensor([3.0]), torch.tensor([2.0]))
    assert m.item() == 3
    assert s.item() == pytest.approx(2 + 2.718281828**-3 + 2.718281828**-2)


def test_nothing_overflows_and_infinities_are_torchs():
    x = torch.tensor(
        [[1e4, -1e4, 0.0], [-torch.inf, 0.0, 1.0], [-torch.inf] * 3, [0.0, torch.inf, 1.0]]
    )
    torch.testing.assert_close(fuse.softmax(x), x.softmax(-1), equal_nan=True)


def test_a_first_part_of_minus_infinity():
    x = torch.zeros(1, PART + 3)
    x[:, :PART] = -torch.inf
    torch.testing.assert_close(fuse.softmax(x), x.softmax(-1))


@DEVICES
def test_cost_of_softmax(device):
    dy = torch.ones(20, 50, device=device)
    x = torch.ones(20, 50, device=device, requires_grad=True)
    mine, plain = work(both(fuse.softmax), dy, x), work(both(fuse.softmax_plain), dy, x)
    assert mine[0] == (1, 4 * 3 * 1000)
    assert plain[0] == (5, 4 * (8 * 1000 + 4 * 20))
    assert mine[1] == (1, 4 * 5 * 1000)
    assert plain[1][0] > 5 and plain[1][1] > 2 * mine[1][1]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("vocab", [7, PART + 5])
def test_cross_entropy_equals_torchs(reduction, vocab):
    assert_same(
        lambda x: fuse.cross_entropy(x, SHIFT, reduction),
        lambda x: F.cross_entropy(x, SHIFT, reduction=reduction),
        randoms((6, vocab)),
    )


def test_more_dimensions_and_another_index_to_ignore():
    targets = SHIFT.clamp(0).view(2, 3)
    assert_same(
        lambda x: fuse.cross_entropy(x, targets, ignore_index=6),
        lambda x: F.cross_entropy(x.flatten(0, 1), targets.flatten(), ignore_index=6),
        randoms((2, 3, 50)),
    )


def test_all_ignored():
    x, targets = torch.ones(3, 5, requires_grad=True), torch.full((3,), -100)
    assert fuse.cross_entropy(x, targets).isnan()
    fuse.cross_entropy(x, targets, "sum").backward()
    assert not x.grad.any()


def test_a_loss_is_in_float32():
    assert fuse.cross_entropy(torch.ones(6, 7).half(), SHIFT).dtype == torch.float32


def test_a_sure_hit_has_a_gradient_in_fp16():
    """exp(x − lse) − 1 of a probability near 1 is formed in float32: in fp16 1 − 1e-4 is 1."""
    x = torch.tensor([[9.0, 0.0]], dtype=torch.float16, requires_grad=True)
    fuse.cross_entropy(x, torch.tensor([0]), "sum").backward()
    assert x.grad[0, 0].item() == pytest.approx(-1.234e-4, rel=1e-2)


@DEVICES
def test_cost_of_cross_entropy(device):
    tokens, V = 24, 50
    x = torch.ones(tokens, V, device=device, requires_grad=True)
    targets, dy = torch.ones(tokens, device=device).long(), torch.ones(tokens, device=device)
    mine = work(both(lambda x: fuse.cross_entropy(x, targets, "none")), dy, x)
    plain = work(both(lambda x: fuse.cross_entropy_plain(x, targets)), dy, x)
    assert mine[0] == (1, 4 * tokens * V + 8 * tokens + 2 * 4 * tokens)
    assert mine[1] == (1, 4 * 2 * tokens * V + 8 * tokens + 2 * 4 * tokens)
    assert plain[0][0] == 7 and plain[0][1] > 5 * mine[0][1]
    assert plain[1][0] > 5 and plain[1][1] > 3 * mine[1][1]


def test_no_second_tensor_of_all_logits_is_kept():
    x, targets = torch.ones(24, 50, requires_grad=True), torch.arange(24)
    kept = lambda loss: sum(measure(lambda: loss(x, targets)).timeline.at(float("inf")).values())
    assert kept(fuse.cross_entropy) < 4 * 24 * 50 + 30 * 24
    assert kept(F.cross_entropy) >= 4 * 2 * 24 * 50


def test_what_cross_entropy_refuses():
    with pytest.raises(ValueError, match="'max'"):
        fuse.cross_entropy(torch.ones(2, 3), torch.zeros(2).long(), "max")
    for targets in (torch.zeros(3).long(), torch.zeros(2)):
        with pytest.raises(ValueError, match="want targets"):
            fuse.cross_entropy(torch.ones(2, 3), targets)
    with pytest.raises(RuntimeError):
        fuse.cross_entropy(torch.ones(2, 3), torch.tensor([0, 3]))


# ------------------------------------------------------------
# Attention in tiles

CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


def pair(causal, tile=None):
    return (
        lambda q, k, v: fuse.attention(q, k, v, causal, tile),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal),
    )


@CAUSAL
@pytest.mark.parametrize(
    ("T", "tile"), [(1, 1), (7, 1), (7, 4), (64, 16), (33, 16), (33, 64), (200, None)]
)
def test_tiles_of_any_size(causal, T, tile):
    assert_same(*pair(causal, tile), randoms(*[(2, 3, T, 8)] * 3))


@pytest.mark.parametrize(("T", "K"), [(5, 9), (9, 5), (1, 33)])
def test_other_keys_than_queries(T, K):
    assert_same(*pair(False, 4), randoms((3, T, 8), (3, K, 8), (3, K, 8)))


def test_heads_behind_tokens_and_no_heads():
    ours, theirs = pair(True, 4)
    assert_same(
        lambda *x: ours(*(t.transpose(1, 2) for t in x)),
        lambda *x: theirs(*(t.transpose(1, 2) for t in x)),
        randoms(*[(2, 10, 3, 8)] * 3),
    )
    assert_same(ours, theirs, randoms((10, 8), (10, 8), (10, 8)))


def test_large_scores_do_not_overflow():
    assert_same(*pair(True, 4), [40 * x for x in randoms(*[(1, 20, 8)] * 3)], bound=1e-9)


def test_a_gradient_is_the_sum_of_many_tiles():
    """Of two keys alike each of 1024 queries has half: in bfloat16 a sum of halves would stand still at 256."""
    q, k, v = (torch.zeros(1, rows, 8, dtype=torch.bfloat16) for rows in (1024, 2, 2))
    v.requires_grad_()
    fuse.attention(q, k, v, tile=2).sum().backward()
    assert v.grad.unique().tolist() == [512]


@DEVICES
# 4 × 4 tiles, or 1 + 2 + 3 + 4 of them
@pytest.mark.parametrize(("causal", "tiles"), [(False, 16), (True, 10)])
def test_cost_of_attention(device, causal, tiles):
    N = 3
    T = 64
    D = 8
    tile = 16
    do, *inputs = (torch.ones(N, T, D, device=device) for _ in range(4))
    for x in inputs:
        x.requires_grad_()
    run = both(pair(causal, tile)[0])
    profile, product = measure(run, do, *inputs), 2 * N * tiles * tile * tile * D
    # bytes of a query, of a number a query, of all queries
    row = N * D * 4
    number = N * 4
    x = N * T * D * 4
    forward = 2 * x + N * T * 4 + tiles * tile * 2 * row  # q, o, lse; k and v for each tile
    assert profile.by_operator["attention"][:3] == (1, 2 * product, forward)
    # do, o, lse; k, v, dk, dv; q, do, dq, lse, D
    backward = 6 * x + N * T * 4 + tiles * tile * (4 * row + 2 * number)
    assert profile.by_operator["attention_backward"][:3] == (1, 5 * product, backward)
    assert profile.calls == 2
    with FlopCounterMode(display=False) as theirs:
        run(do, *inputs)
    assert theirs.get_total_flops() == profile.flops == 7 * product


@DEVICES
def test_the_plain_attention_launches_more_and_moves_more(device):
    do, *inputs = (torch.ones(8, 256, 16, device=device) for _ in range(4))
    for x in inputs:
        x.requires_grad_()
    mine = work(both(pair(False, 64)[0]), do, *inputs)
    plain = work(both(fuse.attention_plain), do, *inputs)
    for (calls, nbytes), (more, many) in zip(mine, plain, strict=True):
        assert calls == 1 and more >= 4 and many > 3 * nbytes


def peaks(fn, T):
    """Peak bytes, all operators seen, for T and 2T tokens."""
    return [measure(fn, *(torch.ones(2, t, 8) for _ in range(4))).peak for t in (T, 2 * T)]


def tile_by_tile(do, q, k, v):
    """What the operators do, by the operators it is done with: a meter sees what is inside."""
    out, lse = fuse._attention._init_fn(q, k, v, True, 1.0, 8)
    return fuse._attention_backward._init_fn(do, q, k, v, out, lse, True, 1.0, 8)


def written_out(do, q, k, v):
    leaves = [x.requires_grad_() for x in (q, k, v)]
    return torch.autograd.grad(fuse.attention_plain(*leaves, True), leaves, do)


def test_memory_is_linear_in_T(figure):
    for T in (64, 128) if FULL else (64,):
        small, large = peaks(tile_by_tile, T)
        figure(
            f"T={T}, {2 * T}: peak {small:,}, {large:,} B in tiles, {peaks(written_out, T)} written out"
        )
        assert 1.8 < large / small < 2.05
    small, large = peaks(written_out, 512)
    assert 3.5 < large / small < 4.1


@DEVICES
def test_what_attention_keeps_is_linear_in_T(device):
    def kept(fn, T):
        inputs = [torch.ones(2, T, 8, device=device, requires_grad=True) for _ in range(3)]
        return sum(measure(lambda: fn(*inputs)).timeline.at(float("inf")).values())

    assert kept(pair(True)[0], 512) == 4 * 2 * 512 * (4 * 8 + 1)
    assert kept(pair(True)[0], 1024) == 2 * kept(pair(True)[0], 512)
    plain = CASES["causal"][2]
    assert kept(plain, 1024) > 3.5 * kept(plain, 512)


def test_what_attention_refuses():
    x, other = torch.ones(2, 3, 4), torch.ones(2, 5, 4)
    for q, k, v in (
        (x, x, other),
        (x, other[..., :3], other[..., :3]),
        (x[0], x, x),
        (x.half(), x, x),
    ):
        with pytest.raises(ValueError, match="3, "):
            fuse.attention(q, k, v)
    with pytest.raises(ValueError, match="3 and 5"):
        fuse.attention(x, other, other, causal=True)
    with pytest.raises(ValueError, match="not 0"):
        fuse.attention(x, x, x, tile=0)


# ------------------------------------------------------------
# As operators: to PyTorch's own checks, to tracing, in a World and in processes.

minidist = torch.ops.minidist
X, W = randoms((4, 6), (6,))
Q = randoms((2, 5, 4))[0]
ROW = randoms((4,))[0]
TARGETS = torch.tensor([1, 0, 5, 2])

CALLS = {
    "add3": (X, X, X),
    "bias_gelu": (X, W),
    "bias_gelu_backward": (X, X, W),
    "layer_norm": (X, W, W, 1e-5),
    "layer_norm_backward": (X, X, W, ROW, ROW),
    "softmax": (X,),
    "softmax_backward": (X, X),
    "cross_entropy": (X, TARGETS, -100),
    "cross_entropy_backward": (ROW, X, TARGETS, ROW, -100),
    "attention": (Q, Q, Q, True, 0.5, 2),
    "attention_backward": (Q, Q, Q, Q, Q, Q[..., 0].contiguous(), True, 0.5, 2),
    "adamw_": (X[0].clone(), X[1].clone(), X[2].abs(), W, 0.1, 0.9, 0.9, 0.19, 0.19, 1e-8, 0.1),
}


@pytest.mark.parametrize("name", CALLS)
def test_schema_and_fake_are_right(name):
    """What changes is declared, and the fake has the shapes, types and strides of the real one."""
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(getattr(minidist, name).default, CALLS[name], test_utils=checks)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("name", CALLS)
def test_meta_gives_what_a_cpu_gives(name, dtype):
    def cast(x, device):
        if not isinstance(x, torch.Tensor):
            return x
        wide = (
            x.dim() == 1
            and name in ("layer_norm_backward", "cross_entropy_backward")
            and len(x) == 4
            or name == "attention_backward"
            and x.dim() == 2
        )
        return (x.to(torch.float32 if wide else dtype) if x.is_floating_point() else x).to(device)

    real, fake = (
        getattr(minidist, name)(*(cast(x, device) for x in CALLS[name]))
        for device in ("cpu", "meta")
    )
    if real is None:
        assert fake is None
        return
    pairs = [(real, fake)] if isinstance(real, torch.Tensor) else zip(real, fake, strict=True)
    for a, b in pairs:
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride()) and b.is_meta


def test_every_operator_is_checked_here():
    assert {
        name.partition("::")[2]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("minidist::")
    } - {"doubled", "doc_cube", "doc_square"} == set(CALLS)  # and those that examples register


class Block(nn.Module):
    """Every operator once, in the way of a transformer's layer."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.weight, self.bias = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))

    def forward(self, x):  # (B, T, 8)
        h = fuse.layer_norm(x, self.weight, self.bias)
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(h).chunk(3, -1))
        a = fuse.attention(q, k, v, causal=True, tile=2).transpose(1, 2).flatten(2)
        return fuse.add3(x, self.out(fuse.softmax(a)), fuse.bias_gelu(a, self.bias))


def train(comm, optimizer_class):
    block = Block().double()
    random = torch.Generator().manual_seed(1)
    for p in block.parameters():
        p.data = torch.randn(p.shape, generator=random, dtype=torch.float64)
    optimizer = optimizer_class(block.parameters(), lr=0.01, eps=1e-3)
    for _ in range(3):
        x = torch.randn(2, 5, 8, generator=random, dtype=torch.float64)
        optimizer.zero_grad()
        fuse.cross_entropy(block(x), torch.ones(2, 5).long()).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in block.parameters()])


@pytest.mark.parametrize(
    "run",
    [lambda *args: World(3).run(train, *args), lambda *args: launch(train, 2, *args)],
    ids=["world", "processes"],
)
def test_in_ranks(run):
    expected = train(None, torch.optim.AdamW)
    for found in run(FlatAdamW):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def launches(comm, add):
    x = torch.ones(1 << 20, device="meta")
    start = comm.now()
    add(x, x, x)
    return comm.now() - start


def test_a_world_charges_one_launch():
    cluster = Cluster.dgx_h100()
    device = cluster.device
    world = World(1, cluster=cluster, device="meta")
    times = [world.run(launches, add)[0] for add in (fuse.add3, fuse.add3_plain)]
    assert times[0] == pytest.approx(device.launch + device.moving(4 * 4 * 2**20))
    assert times[1] == pytest.approx(2 * device.launch + device.moving(6 * 4 * 2**20))


def test_a_caller_that_casts_does_not_reach_inside():
    """The scores of float32 are float32's, also where PyTorch would take bf16 for every product."""
    q = Q.float()
    expected = fuse.attention(q, q, q)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(fuse.attention(q, q, q), expected)
        assert not torch.equal(fuse.attention_plain(q, q, q), expected)


@pytest.mark.parametrize("fn", [fuse.bias_gelu, lambda x, w: fuse.layer_norm(x, w, w)])
def test_parameters_of_another_type_than_the_input(fn):
    """As autocast leaves them: fp16 from a product, and fp32 parameters."""
    x, w = X.half().requires_grad_(), W.float().requires_grad_()
    y = fn(x, w)
    torch.testing.assert_close(y, fn(x.float(), w).half(), rtol=1e-3, atol=1e-4)
    grads = torch.autograd.grad(y.sum(), (x, w))
    assert [y.dtype, *(g.dtype for g in grads)] == [torch.float16, torch.float16, torch.float32]


def test_a_compiler_that_traces_sees_operators():
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(lambda x, w: fuse.softmax(fuse.bias_gelu(x, w)), tracing_mode="symbolic")(
        X, W
    ).graph
    assert [n.target.name() for n in graph.nodes if n.op == "call_function"] == [
        "minidist::bias_gelu",
        "minidist::softmax",
    ]


def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def test_an_operator_says_what_it_costs():
    made = fuse.operator(
        "doubled",
        flops=lambda x, out_val: 3 * x.numel(),
        moved=lambda x, out_val: x.nbytes + 5 * out_val.nbytes,
    )(doubled)
    for device in ("cpu", "meta"):
        profile = measure(lambda x: made(x), torch.ones(10, device=device))
        assert (profile.calls, profile.flops, profile.bytes_moved) == (1, 30, 6 * 40)
