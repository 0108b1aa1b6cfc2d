"""Eight bits beside their definition: formats, scales of blocks, products, layers, ranks that agree, histories."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from minidist.collectives import all_reduce_
from minidist.comm import World, launch
from minidist.models import Linear, TransformerLayer, seeded_
from minidist.parallel.tensor import ColumnLinear, RowLinear, gather_from
from minidist.split import bounds, uneven
from minidist.study import measure
from minidist.study.predict import amax_bytes
from minidist.train.amp import autocast
from minidist.train.fp8 import (
    E4M3,
    E5M2,
    GRAINS,
    ROW,
    SQUARE,
    TENSOR,
    TILE,
    Delayed,
    Grain,
    Present,
    Scaled,
    eight_bits_,
    linear,
    on_tensor_cores,
    product,
    quantize,
    scale_of,
    update,
)
from minidist.train.remat import checkpoint
from tests.largest import largest

RUNS = {
    "world": lambda n, *args: World(n).run(*args),
    "processes": lambda n, program, *args: launch(program, n, *args),
}
EVERYWHERE = [*(("world", n) for n in (1, 2, 3, 4)), ("processes", 2), ("processes", 3)]
FORMAT = {E4M3: (4, 3), E5M2: (5, 2)}  # bits of exponent, of fraction


def normal(*shape, seed=0, dtype=torch.float64):
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.to(dtype)


def numbers(exponent, fraction):
    """All finite positive numbers of a format, by its definition: (value, whether its last bit is 0)."""
    bias, top = 2 ** (exponent - 1) - 1, 2**exponent - 1
    found = []
    for e in range(top + 1):
        for f in range(2**fraction):
            if e == top and (exponent == 5 or f == 2**fraction - 1):
                continue  # inf and nan; of E4M3 only one number is none
            value = f * 2.0 ** (1 - bias) if e == 0 else (2**fraction + f) * 2.0 ** (e - bias)
            found.append((value / 2**fraction, f % 2 == 0))
    return found


def rounded(x, dtype):
    """By search: the nearest number; of two the one whose last bit is 0; beyond the range its end."""
    every = numbers(*FORMAT[dtype])
    nearest = lambda number: (abs(number[0] - abs(x)), not number[1])
    return math.copysign(min(every, key=nearest)[0], x)


# ------------------------------------------------------------------------------------------------------------ formats
@pytest.mark.parametrize("dtype", FORMAT)
def test_rounding(dtype):
    values = [value for value, _ in numbers(*FORMAT[dtype])]
    between = [(a + b) / 2 for a, b in pairwise(values)]
    x = [*values, *between, *(value * 1.001 for value in values), values[-1] * 3]
    x += [-value for value in x[::7]]
    found = quantize(torch.tensor([x]), dtype, scale=torch.ones(1, 1)).dequantized()
    assert found.tolist() == [[rounded(value, dtype) for value in x]]
    assert (values[-1], values[1]) == {E4M3: (448, 2.0**-9), E5M2: (57344, 2.0**-16)}[dtype]


@pytest.mark.parametrize("dtype", FORMAT)
def test_the_smallest_power_of_two_that_fits(dtype):
    limit = torch.finfo(dtype).max
    amax = torch.tensor([limit, limit * 1.0001, limit / 2, limit / 2 * 1.0001, 1e-20, 1e30])
    scale = scale_of(amax, dtype)
    assert scale[:4].tolist() == [1, 2, 0.5, 1]
    assert (amax <= limit * scale).all() and (amax > limit * scale / 2).all()
    assert (torch.frexp(scale)[0] == 0.5).all()


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_seen(bad):
    x = normal(4, 6)
    x[1, 2] = bad
    assert quantize(x, E5M2).dequantized().isnan().any()
    row = quantize(x, E4M3, ROW).dequantized().isnan().any(1)
    assert row.tolist() == [False, True, False, False]


def test_zeros_and_nothing():
    assert quantize(torch.zeros(3, 4), E4M3).dequantized().tolist() == [[0.0] * 4] * 3
    for shape in ((0, 4), (3, 0)):
        for grain in (TENSOR, ROW, TILE, SQUARE):
            assert quantize(torch.zeros(shape), E4M3, grain).dequantized().shape == shape


# ------------------------------------------------------------------------------------------------------------- blocks
@pytest.mark.parametrize("shape", [(5, 7), (4, 6), (1, 9)])
@pytest.mark.parametrize("grain", [TENSOR, ROW, Grain(1, 3), Grain(2, 3), Grain(4, None)], ids=str)
def test_a_scale_for_each_block(grain, shape):
    x = normal(*shape) * 10.0 ** normal(*shape, seed=1)
    scaled = quantize(x, E4M3, grain)
    rows, columns = (
        size if side is None else side for size, side in zip(shape, grain, strict=True)
    )
    found = scaled.dequantized(torch.float64)
    for i in range(0, shape[0], rows):
        for j in range(0, shape[1], columns):
            block = x[i : i + rows, j : j + columns]
            scale = scaled.scale[i // rows, j // columns].item()
            assert scale == 2.0 ** math.ceil(math.log2(block.abs().max().item() / 448))
            mean = [[rounded(v / scale, E4M3) * scale for v in row] for row in block.tolist()]
            assert found[i : i + rows, j : j + columns].tolist() == mean
    assert scaled.scale.shape == (-(-shape[0] // rows), -(-shape[1] // columns))


def test_a_finer_grain_loses_less_beside_an_outlier(figure):
    """One token, or one feature, is a thousand times as large: its block alone loses its small numbers."""
    x = normal(256, 256)
    x[3, 5] = 3e5
    rest = torch.ones(256, 256, dtype=torch.bool)
    rest[3, 5] = False
    lost = {}
    for name, grain in dict(tensor=TENSOR, row=ROW, block=TILE).items():
        error = (quantize(x, E4M3, grain).dequantized(torch.float64) - x)[rest]
        lost[name] = (error.norm() / x[rest].norm()).item()
    assert lost["tensor"] > 10 * lost["row"] and lost["row"] > lost["block"]
    figure(
        f"relative error beside an outlier, E4M3: {', '.join(f'{k} {v:.3f}' for k, v in lost.items())}"
    )


# ----------------------------------------------------------------------------------------------------------- products
def pair(grain, M=21, K=150, N=34):
    x = normal(M, K, dtype=torch.float32)
    w = normal(N, K, seed=1, dtype=torch.float32)
    return quantize(x, E5M2, GRAINS[grain]["x"]), quantize(w, E4M3, GRAINS[grain]["weight"])


@pytest.mark.parametrize("grain", ["tensor", "row"])
def test_emulated_as_by_the_kernel(grain):
    """PyTorch's kernel for eight bits has a form for CPUs, for one scale and for rows."""
    a, b = pair(grain)
    ours, theirs = product(a, b, torch.bfloat16), on_tensor_cores(a, b, torch.bfloat16)
    torch.testing.assert_close(ours, theirs, rtol=2**-7, atol=1e-6)
    assert ours.dtype == theirs.dtype == torch.bfloat16
    if grain == "tensor":
        torch.testing.assert_close(
            product(a, b, torch.float32), on_tensor_cores(a, b, torch.float32), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("sizes", [(21, 150, 34), (16, 128, 32), (128, 256, 128), (1, 1, 1)])
@pytest.mark.parametrize("grain", GRAINS)
def test_the_kernel_takes_all_sizes(grain, sizes):
    """On meta tensors PyTorch checks shapes, strides and alignment as it does for CUDA."""
    onto = lambda x: Scaled(x.values.to("meta"), x.scale.to("meta"), x.grain)
    a, b = map(onto, pair(grain, *sizes))
    assert on_tensor_cores(a, b, torch.float32).shape == (sizes[0], sizes[2])


@pytest.mark.parametrize("sizes", [(21, 150, 34), (512, 512, 512), (128, 1024, 512)])
@pytest.mark.parametrize("grain", GRAINS)
def test_the_kernels_take_a_layer_and_its_gradients(grain, sizes):
    """Also where scales need no padding: those of a transposed weight are then not laid out anew by it."""
    tokens, inputs, outputs = sizes
    x, w = (
        torch.empty(*shape, device="meta", dtype=torch.bfloat16).requires_grad_()
        for shape in ((tokens, inputs), (outputs, inputs))
    )
    linear(x, w, scaling=Present(grain)).sum().backward()
    assert (x.grad.shape, w.grad.shape) == (x.shape, w.shape)


def oracle(x, w, dy, grain):
    """y, dx, dW, each operand rounded where its product contracts."""
    of = GRAINS[grain]
    exact = lambda x, dtype, name: quantize(x, dtype, of[name]).dequantized(torch.float64)
    y = exact(x, E4M3, "x") @ exact(w, E4M3, "weight").t()
    dx = exact(dy, E5M2, "grad") @ exact(w.t(), E4M3, "weight").t()
    dw = exact(dy.t(), E5M2, "grad") @ exact(x.t(), E4M3, "x").t()
    return y, dx, dw


@pytest.mark.parametrize("grain", GRAINS)
def test_a_linear_layer_and_its_gradients(grain):
    x = normal(2, 9, 140).requires_grad_()
    w = normal(30, 140, seed=1).requires_grad_()
    b = normal(30, seed=2).requires_grad_()
    dy = normal(2, 9, 30, seed=3) * 1e-6
    y = linear(x, w, b, scaling=Present(grain))
    y.backward(dy)
    flat = x.detach().flatten(0, 1)
    want = oracle(flat, w.detach(), dy.flatten(0, 1), grain)
    found = (y.detach() - b.detach()).flatten(0, 1), x.grad.flatten(0, 1), w.grad
    for a, e in zip(found, want, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-12, atol=1e-18)
    torch.testing.assert_close(b.grad, dy.sum((0, 1)))


@pytest.mark.parametrize("frozen", ["x", "weight"])
def test_only_what_is_asked_for_is_computed(frozen):
    x, w = (
        normal(4, 6).requires_grad_(frozen != "x"),
        normal(3, 6).requires_grad_(frozen != "weight"),
    )
    linear(x, w).sum().backward()
    assert (x.grad is None) == (frozen == "x") and (w.grad is None) == (frozen == "weight")


def test_under_autocast():
    x, w = (normal(8, 16, seed=i, dtype=torch.float32).requires_grad_() for i in (0, 1))
    with autocast(torch.bfloat16):
        y = linear(x, w)
    y.sum().backward()
    assert (y.dtype, x.grad.dtype, w.grad.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    exact = product(quantize(x.detach(), E4M3), quantize(w.detach(), E4M3), torch.float32)
    assert torch.equal(y, exact.bfloat16())


def test_which_layers():
    layer = TransformerLayer(16, 2)
    assert len(eight_bits_(layer)) == 4  # qkv, proj, fc, proj
    assert all("product" in vars(part) for part in layer.modules() if isinstance(part, Linear))
    for wrong in (nn.Linear(2, 2), nn.LayerNorm(3)):
        with pytest.raises(ValueError, match="0 linear layers"):
            eight_bits_(wrong)
    with pytest.raises(ValueError, match="'tensor', 'row', 'block'"):
        eight_bits_(layer, "column")


# -------------------------------------------------------------------------------------------------------------- ranks
TOKENS = 13
INPUTS = 14
OUTPUTS = 15


def spread_out(*shape, seed=0):
    """Magnitudes over so many powers of two that the smallest lose bits, more or fewer by the scale."""
    return normal(*shape, seed=seed) * 2.0 ** (12 * normal(*shape, seed=seed + 100))


def apart(found, want):
    """The largest difference of a number, as a part of it."""
    return largest(
        ((a - b).abs() / b.abs().clamp(min=1e-300)).max().item()
        for a, b in zip(found, want, strict=True)
    )


def layers(comm, split, grain):
    """One rank: y, and the gradients of x, weight and bias, whole; of data, tensor-parallel by columns or by rows."""
    data = comm if split == "data" else None
    kind = {"data": None, "column": ColumnLinear, "row": RowLinear}[split]
    like = dict(dtype=torch.float64)
    layer = (
        seeded_(Linear(INPUTS, OUTPUTS, **like))
        if kind is None
        else kind(INPUTS, OUTPUTS, comm, **like)
    )
    eight_bits_(layer, grain, tokens=data)
    x, dy = spread_out(TOKENS, INPUTS), spread_out(TOKENS, OUTPUTS, seed=1) * 1e-9
    own = bounds(uneven(TOKENS, comm.size))[comm.rank] if data else (0, TOKENS)
    features = uneven(INPUTS, comm.size)
    part = x[slice(*own)].requires_grad_()
    fed = part
    if split == "row":
        first, end = bounds(features)[comm.rank]
        part = x[:, first:end].clone().requires_grad_()
        fed = part
    y = layer(fed)
    grad = dy[slice(*own)]
    if split == "column":
        first, end = bounds(uneven(OUTPUTS, comm.size))[comm.rank]
        grad = dy[:, first:end]
    y.backward(grad)
    bias = layer.bias.grad
    weight = layer.weight.grad
    dx = part.grad
    if split == "data":
        all_reduce_(comm, [weight, bias])
        gather = lambda t: gather_from(t, comm, 0, uneven(TOKENS, comm.size))
        y, dx = gather(y), gather(dx)
    if split == "column":
        outputs = uneven(OUTPUTS, comm.size)
        y = gather_from(y, comm, -1, outputs)
        weight, bias = (gather_from(t, comm, 0, outputs) for t in (weight, bias))
    if split == "row":
        weight, dx = (gather_from(t, comm, -1, features) for t in (weight, dx))
    return [t.detach() for t in (y, dx, weight, bias)]


@pytest.mark.parametrize("grain", ["tensor", "row"])
@pytest.mark.parametrize("split", ["data", "column", "row"])
@pytest.mark.parametrize(("run", "n"), EVERYWHERE)
def test_ranks_agree_on_scales(run, n, split, grain, figure):
    [want] = World(1).run(layers, split, grain)
    results = RUNS[run](n, layers, split, grain)
    worst = largest(apart(found, want) for found in results)
    assert worst < 1e-10
    figure(f"{run}, n={n}, {split}, by {grain}: {worst:.1e} from one rank")


@pytest.mark.parametrize("grain", ["tensor", "row"])
@pytest.mark.parametrize("split", ["data", "column", "row"])
def test_without_agreement_it_is_another_run(split, grain, monkeypatch):
    [want] = World(1).run(layers, split, grain)
    monkeypatch.setattr(Present, "agreed", lambda self, amax, name, turned: amax)
    assert apart(World(3).run(layers, split, grain)[0], want) > 1e-8


def blocks(comm, split):
    """A layer whose cuts are multiples of 128, tokens too."""
    kind = {"column": ColumnLinear, "row": RowLinear}[split]
    layer = kind(256, 256, comm)
    eight_bits_(layer, "block")
    x = normal(128, 256, dtype=torch.float32) * 2.0 ** (torch.arange(256) // 64)
    first, end = bounds(uneven(256, comm.size))[comm.rank]
    y = layer(x if split == "column" else x[:, first:end])
    dy = normal(128, 256, seed=2, dtype=torch.float32)
    y.backward(dy[:, first:end] if split == "column" else dy)
    return gather_from(layer.weight.grad, comm, 0 if split == "column" else 1)


@pytest.mark.parametrize("split", ["column", "row"])
def test_blocks_need_no_agreement(split):
    [want] = World(1).run(blocks, split)
    for found in World(2).run(blocks, split):
        torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5)


def one_layer(comm, dp, split, grain, agree):
    """Forward and backward of one layer on dp × tp ranks; nothing else is sent than what the layer sends in any case."""
    tp = comm.split(comm.rank // (comm.size // dp))
    data = comm.split(comm.rank % tp.size)
    kind = {"column": ColumnLinear, "row": RowLinear}[split]
    layer = kind(12, 24, tp)
    if agree:
        eight_bits_(layer, grain, tokens=data)
    width = 12 if split == "column" else 12 // tp.size
    x = normal(6 // dp, width, dtype=torch.float32).requires_grad_()
    layer(x).sum().backward()


@pytest.mark.parametrize("grain", GRAINS)
@pytest.mark.parametrize("split", ["column", "row"])
@pytest.mark.parametrize(("dp", "tp"), [(1, 1), (2, 1), (1, 3), (3, 2)])
def test_bytes_of_the_agreement(dp, tp, split, grain, figure):
    sent = [
        World(dp * tp).run(one_layer, dp, split, grain, agree).trace.bytes_sent()
        for agree in (False, True)
    ]
    formula = amax_bytes(12, 24, 6, dp, tp, split, grain)
    assert sent[1] - sent[0] == formula
    figure(f"dp {dp}, tp {tp}, {split}, by {grain}: {formula} bytes more, as by formula")


# ------------------------------------------------------------------------------------------------------------- memory
@pytest.mark.parametrize("grain", GRAINS)
def test_half_the_bytes_are_kept(grain, figure):
    """x in a byte a number and its scales, where 16 bits keep it in two."""
    T, F = 256, 512
    layer = seeded_(Linear(F, F, bias=False)).bfloat16()
    saved = {}

    def kept(do):
        found = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: found.append(t) or t, lambda t: t):
            do(normal(T, F, dtype=torch.bfloat16).requires_grad_())
        return sum(t.nbytes for t in found if t.data_ptr() != layer.weight.data_ptr())

    saved["bf16"] = kept(layer)
    eight_bits_(layer, grain)
    saved["fp8"] = kept(layer)
    scales = {"tensor": 1 + 1, "row": F + F, "block": F * T // 128 + (F // 128) ** 2}[grain]
    assert saved == {"bf16": 2 * T * F, "fp8": T * F + 4 * scales}
    figure(f"by {grain}: {saved['fp8']:,} bytes kept of x and scales, {saved['bf16']:,} in bf16")


# ------------------------------------------------------------------------------------------------------------ history
def test_the_scale_is_that_of_the_steps_before():
    scaling = Delayed(length=2)
    seen = []
    for size in (1.0, 100.0, 3.0, 0.5, 0.25):
        x = torch.full((2, 3), size, requires_grad=True)
        seen.append(scaling(x, "x").scale.item())
        update([scaling])
    best = lambda amax: scale_of(torch.tensor(amax), E4M3).item()
    assert seen == [1.0, best(1.0), best(100.0), best(100.0), best(3.0)]


def test_what_is_beyond_a_stale_scale_is_cut_off():
    scaling = Delayed()
    scaling(torch.ones(1, 1), "x")
    update([scaling])
    assert scaling(torch.full((1, 1), 5.0), "x").dequantized().item() == 448 / 256
    scaling(torch.full((1, 1), math.inf), "x")
    update([scaling])
    assert all(amax.isfinite() for amax in scaling.histories["x"].steps)


def test_what_has_no_backward_is_not_written_down():
    layer = seeded_(TransformerLayer(8, 2))
    scalings = eight_bits_(layer, lambda split: Delayed(4, split))
    with torch.no_grad():
        layer(1e6 * normal(1, 3, 8, dtype=torch.float32))
    assert all(history.now is None for s in scalings for history in s.histories.values())
    x = normal(1, 3, 8, dtype=torch.float32).requires_grad_()
    layer(x).sum().backward()
    once = [history.now.item() for s in scalings for history in s.histories.values()]
    for s in scalings:
        for history in s.histories.values():
            history.now = None
    checkpoint(layer, x).sum().backward()
    assert once == [history.now.item() for s in scalings for history in s.histories.values()]


def delayed(comm, steps):
    """Data-parallel steps on uneven parts, scales agreed after each; the scales that each rank has at the end."""
    layer = seeded_(TransformerLayer(8, 2, dtype=torch.float64))
    scalings = eight_bits_(layer, lambda split: Delayed(3, split), tokens=comm)
    losses = []
    for step in range(steps):
        x = normal(7, 5, 8, seed=step) * 2**step
        first, end = bounds(uneven(7, comm.size))[comm.rank]
        loss = layer(x[first:end]).square().sum()
        loss.backward()
        losses.append(all_reduce_(comm, loss.detach()).item())
        update(scalings, comm)
    return losses, [h.steps[-1].item() for s in scalings for h in s.histories.values()]


@pytest.mark.parametrize(("run", "n"), EVERYWHERE)
def test_histories_are_agreed(run, n):
    [(losses, amax)] = World(1).run(delayed, 3)
    for found_losses, found in RUNS[run](n, delayed, 3):
        assert found_losses == pytest.approx(losses, rel=1e-12)
        assert found == pytest.approx(amax, rel=1e-12)


def test_one_message_a_step():
    """Twelve histories of four layers, one all-reduce."""

    def program(comm, steps):
        scalings = [Delayed(3) for _ in range(4)]
        for s in scalings:
            for name in s.histories:
                s(torch.ones(2, 2), name)
        update(scalings, comm)

    trace = World(2).run(program, 1).trace
    assert trace.messages(0) == 2 and trace.bytes_sent() == 2 * 1 * 12 * 4


# -------------------------------------------------------------------------------------------------------------- clock
def test_a_modelled_gpu_is_charged_for_eight_bits():
    """On "meta" the three products of a layer are one kernel each, at twice the rate of 16 bits."""
    layer = Linear(4096, 4096, bias=False, dtype=torch.bfloat16, device="meta")
    x = torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta", requires_grad=True)
    step = lambda: layer(x).sum().backward()
    wide = measure(step, where="meta").by_operator["mm"]
    eight_bits_(layer)
    narrow = measure(step, where="meta").by_operator["_scaled_mm_v2"]
    assert narrow.flops == wide.flops == 3 * 2 * 4096**3 and narrow.calls == wide.calls == 3
    assert 1.7 < wide.seconds / narrow.seconds < 2
