import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from minidist.study.meter import measure
from minidist.train.fuse import attention, attention_plain, tiles
from tests.size import FULL
from tests.train.fuse.against import assert_same, assert_wide, both, randoms, work

CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


def pair(causal, tile=None, scale=None):
    return (
        lambda q, k, v: attention(q, k, v, causal, scale, tile),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale),
    )


@CAUSAL
@pytest.mark.parametrize(
    ("T", "tile"), [(1, 1), (7, 1), (7, 4), (64, 16), (33, 16), (33, 64), (200, None)]
)
def test_equals_torch_and_the_plain_one(causal, T, tile):
    inputs = randoms((2, 3, T, 8), (2, 3, T, 8), (2, 3, T, 8))
    assert_same(*pair(causal, tile), inputs)
    assert_same(pair(causal, tile)[0], lambda q, k, v: attention_plain(q, k, v, causal), inputs)


@pytest.mark.parametrize(("T", "K"), [(5, 9), (9, 5), (1, 33)])
def test_other_keys_than_queries(T, K):
    assert_same(*pair(False, 4), randoms((3, T, 8), (3, K, 8), (3, K, 8)))


def test_a_scale_and_inputs_that_lie_otherwise():
    # heads behind tokens, as a projection gives them
    q, k, v = randoms((2, 10, 3, 8), (2, 10, 3, 8), (2, 10, 3, 8))
    ours, theirs = pair(True, 4, 0.7)
    assert_same(
        lambda *x: ours(*(t.transpose(1, 2) for t in x)),
        lambda *x: theirs(*(t.transpose(1, 2) for t in x)),
        (q, k, v),
    )
    assert_same(ours, theirs, randoms((10, 8), (10, 8), (10, 8)))


def test_large_scores_do_not_overflow():
    q, k, v = (40 * x for x in randoms((1, 20, 8), (1, 20, 8), (1, 20, 8)))
    assert_same(*pair(True, 4), (q, k, v), bound=1e-9)


@CAUSAL
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_worked_on_in_float32(causal, dtype):
    # D, from o
    assert_wide(
        *pair(causal, 16), randoms((2, 70, 8), (2, 70, 8), (2, 70, 8), dtype=dtype), kept=32
    )


def test_a_gradient_is_the_sum_of_many_tiles():
    """Of two keys alike each of 1024 queries has half: in bfloat16 a sum of halves would stand still at 256."""
    q, k, v = (torch.zeros(1, rows, 8, dtype=torch.bfloat16) for rows in (1024, 2, 2))
    v.requires_grad_()
    attention(q, k, v, tile=2).sum().backward()
    assert v.grad.unique().tolist() == [512]


@CAUSAL
def test_the_gradient(causal):
    inputs = [x.requires_grad_() for x in randoms((1, 5, 2), (1, 5, 2), (1, 5, 2))]
    assert torch.autograd.gradcheck(pair(causal, 2)[0], inputs)


N = 3
T = 64
D = 8
TILE = 16


@pytest.mark.parametrize("device", ["cpu", "meta"])
# 4 × 4 tiles, or 1 + 2 + 3 + 4 of them
@pytest.mark.parametrize(("causal", "tiles_"), [(False, 16), (True, 10)])
def test_launches_flops_and_bytes(device, causal, tiles_):
    do, q, k, v = (torch.ones(N, T, D, device=device) for _ in range(4))
    inputs = [x.requires_grad_() for x in (q, k, v)]
    run = both(pair(causal, TILE)[0])
    profile, product = measure(run, do, *inputs), 2 * N * tiles_ * TILE * TILE * D
    # bytes of a query, of a number a query, of all queries
    row = N * D * 4
    number = N * 4
    x = N * T * D * 4
    forward = 2 * x + N * T * 4 + tiles_ * TILE * 2 * row  # q, o, lse; k and v for each tile
    assert profile.by_operator["attention"][:3] == (1, 2 * product, forward)
    # do, o, lse; k, v, dk, dv; q, do, dq, lse, D
    backward = 6 * x + N * T * 4 + tiles_ * TILE * (4 * row + 2 * number)
    assert profile.by_operator["attention_backward"][:3] == (1, 5 * product, backward)
    assert profile.calls == 2
    with FlopCounterMode(display=False) as theirs:
        run(do, *inputs)
    assert theirs.get_total_flops() == profile.flops == 7 * product


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_plain_one_launches_more_and_moves_more(device):
    do, q, k, v = (torch.ones(8, 256, 16, device=device) for _ in range(4))
    inputs = [x.requires_grad_() for x in (q, k, v)]
    mine, plain = (
        work(both(pair(False, 64)[0]), do, *inputs),
        work(both(attention_plain), do, *inputs),
    )
    for (calls, nbytes), (more, many) in zip(mine, plain, strict=True):
        assert calls == 1 and more >= 4 and many > 3 * nbytes


def peaks(fn, T):
    """Peak bytes, all operators seen, for T and 2T tokens."""
    return [measure(fn, *(torch.ones(2, t, 8) for _ in range(4))).peak for t in (T, 2 * T)]


def tile_by_tile(do, q, k, v):
    """What the operators do, by the operators it is done with: a meter sees what is inside."""
    out, lse = tiles.forward(q, k, v, True, 1.0, 8)
    return tiles.backward(do, q, k, v, out, lse, True, 1.0, 8)


def written_out(do, q, k, v):
    return torch.autograd.grad(
        attention_plain(q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), True),
        (q, k, v),
        do,
    )


def test_memory_is_linear_in_T(figure):
    for T in (64, 128) if FULL else (64,):
        small, large = peaks(tile_by_tile, T)
        figure(
            f"T={T}, {2 * T}: peak {small:,}, {large:,} B in tiles, {peaks(written_out, T)} written out"
        )
        assert 1.8 < large / small < 2.05
    small, large = peaks(written_out, 512)
    assert 3.5 < large / small < 4.1


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_the_operator_keeps_is_linear_in_T(device):
    def kept(fn, T):
        inputs = [torch.ones(2, T, 8, device=device, requires_grad=True) for _ in range(3)]
        return sum(measure(lambda: fn(*inputs)).timeline.at(float("inf")).values())

    assert kept(pair(True)[0], 512) == 4 * 2 * 512 * (4 * 8 + 1)
    assert kept(pair(True)[0], 1024) == 2 * kept(pair(True)[0], 512)
    assert kept(lambda *x: attention_plain(*x, True), 1024) > 3.5 * kept(
        lambda *x: attention_plain(*x, True), 512
    )


def test_wrong_inputs_are_refused():
    x, other = torch.ones(2, 3, 4), torch.ones(2, 5, 4)
    for q, k, v in (
        (x, x, other),
        (x, other[..., :3], other[..., :3]),
        (x[0], x, x),
        (x.half(), x, x),
    ):
        with pytest.raises(ValueError, match="3, "):
            attention(q, k, v)
    with pytest.raises(ValueError, match="3 and 5"):
        attention(x, other, other, causal=True)
    with pytest.raises(ValueError, match="not 0"):
        attention(x, x, x, tile=0)
