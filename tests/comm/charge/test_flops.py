"""FLOPs and bytes of operators, against counts made by hand."""

import pytest
import torch
from torch import nn

from minidist.comm.charge.flops import Cost, operator, tensors
from minidist.study.meter import measure
from tests.comm.nets import HEADS, B, H, Layer, T

aten = torch.ops.aten


def cost(func, *args, **kwargs):
    return operator(func).cost(args, kwargs, func(*args, **kwargs))


def flops(fn, *args):
    """FLOPs of forward, and of backward."""
    profile = measure(lambda: fn(*args).sum().backward())
    return profile.by_phase["forward"].flops, profile.by_phase["backward"].flops


@pytest.mark.parametrize(
    ("device", "attention", "products"),
    [
        ("cpu", "call", 5),  # fused: its backward forms the scores again
        ("cpu", "written", 4),
        ("meta", "written", 4),
        ("meta", "call", 4),  # PyTorch writes it out there
        ("meta", "operator", 5),
    ],
)
def test_a_transformer_layer(device, attention, products):
    layer = Layer(attention).to(device)
    x = torch.ones(B, T, H, device=device, requires_grad=True)
    linear = 2 * B * T * (3 * H * H + H * H + 4 * H * H + 4 * H * H)  # 24·B·T·H²
    one = 2 * B * HEADS * T * T * (H // HEADS)
    assert flops(layer, x) == (linear + 2 * one, 2 * linear + products * one)


def test_the_first_layer_needs_no_gradient_of_its_input():
    assert flops(nn.Linear(8, 5), torch.ones(7, 8)) == (2 * 7 * 8 * 5, 2 * 7 * 8 * 5)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_convolution_costs_as_much_for_each_gradient(groups, device):
    net = nn.Conv2d(4, 8, 3, stride=2, groups=groups, device=device)
    x = torch.ones(2, 4, 9, 11, device=device, requires_grad=True)
    # 2 a product, images, places, outputs, inputs, 3 × 3
    forward = 2 * 2 * (4 * 5) * 8 * (4 // groups) * 9
    assert flops(net, x) == (forward, 2 * forward)
    assert flops(net, x.detach()) == (forward, forward)


def test_a_transposed_convolution():
    x = torch.ones(2, 4, 5, 5, requires_grad=True)
    forward = 2 * 2 * 25 * 4 * 8 * 9  # at the places of its input
    assert flops(nn.ConvTranspose2d(4, 8, 3), x) == (forward, 2 * forward)


M, V = torch.ones(6, 4), torch.ones(4)


@pytest.mark.parametrize(
    ("func", "args", "count"),
    [
        (aten.mm.default, (M, M.t()), 2 * 6 * 4 * 6),
        (aten.addmm.default, (torch.ones(6), M, M.t()), 2 * 6 * 4 * 6),
        (aten.addmm_.default, (torch.ones(6, 6), M, M.t()), 2 * 6 * 4 * 6),
        (aten.mv.default, (M, V), 2 * 24),
        (aten.addmv.default, (torch.ones(6), M, V), 2 * 24),
        (aten.addmv_.default, (torch.ones(6), M, V), 2 * 24),
        (aten.dot.default, (V, V), 8),
        (aten.bmm.default, (torch.ones(5, 6, 4), torch.ones(5, 4, 3)), 2 * 5 * 6 * 4 * 3),
        (
            aten.baddbmm_.default,
            (torch.ones(5, 6, 3), torch.ones(5, 6, 4), torch.ones(5, 4, 3)),
            2 * 5 * 6 * 4 * 3,
        ),
        (
            aten.addbmm.default,
            (torch.ones(6, 3), torch.ones(5, 6, 4), torch.ones(5, 4, 3)),
            2 * 5 * 6 * 4 * 3,
        ),
        (aten._int_mm.default, (torch.ones(17, 8).char(), torch.ones(8, 8).char()), 2 * 17 * 8 * 8),
        (aten.add.Tensor, (M, M), 0),
        (aten._softmax.default, (M, -1, False), 0),
    ],
)
def test_products(func, args, count):
    assert cost(func, *args).flops == count


def test_out_is_no_operand():
    got = operator(aten.mm.out).cost((M, M.t()), {"out": torch.empty(6, 6)}, torch.empty(6, 6))
    assert got == Cost(2 * 6 * 4 * 6, (24 + 24 + 36) * 4, torch.float32)


@pytest.mark.parametrize(
    ("func", "args", "moved"),
    [
        (aten.add.Tensor, (M, M), 3 * 96),
        (aten.add_.Tensor, (M.clone(), M), 3 * 96),  # read, read, written
        (aten.copy_.default, (M.clone(), M), 2 * 96),  # what is overwritten is not read
        (aten.zero_.default, (M.clone(),), 96),
        (aten.add.Tensor, (M, V.expand(6, 4)), 2 * 96 + 16),  # a broadcast operand as it is stored
        (aten._foreach_add_.List, ([M.clone(), V.clone()], [M, V]), 3 * (96 + 16)),
        (aten._foreach_add.List, ([M, V], [M, V]), 3 * (96 + 16)),
        (aten._foreach_copy_.default, ([M.clone(), V.clone()], [M, V]), 2 * (96 + 16)),
        (aten._foreach_zero_.default, ([M.clone(), V.clone()],), 96 + 16),
        # the rows, not the table
        (aten.embedding.default, (torch.ones(1000, 4), torch.tensor([1, 5])), 2 * 32 + 16),
        (aten.index_select.default, (torch.ones(1000, 4), 0, torch.tensor([1, 5])), 2 * 32 + 16),
        (aten.sum.default, (M,), 96 + 4),
        (aten.cat.default, ([M, M],), 4 * 96),
        (aten._to_copy.default, (M,), 2 * 96),
        (aten.ones.default, ([6, 4],), 96),
        (aten.view.default, (M, [24]), 0),
        (aten._unsafe_view.default, (M, [24]), 0),
        (aten.unsafe_split.Tensor, (M, 2), 0),
        (aten.split.Tensor, (M, 2), 0),
        (aten.detach.default, (M,), 0),
        (aten.t_.default, (M.clone(),), 0),
        (aten.empty.memory_format, ([6, 4],), 0),
        (aten.new_empty.default, (M, [6, 4]), 0),
        (aten.empty_like.default, (M,), 0),
    ],
)
def test_bytes(func, args, moved):
    assert cost(func, *args).nbytes == moved


def test_views_and_allocations_are_free_and_nothing_else_is():
    assert all(
        operator(f).free
        for f in (
            aten.t.default,
            aten.empty.memory_format,
            aten.set_.source_Storage,
            aten.resize_.default,
            aten._reshape_alias.default,
        )
    )
    assert not any(
        operator(f).free
        for f in (
            aten.add_.Tensor,
            aten.copy_.default,
            aten.relu_.default,
            aten.clone.default,
            aten.native_dropout.default,
        )
    )


def test_the_dtype_of_the_operands():
    half = torch.ones(4, 4, dtype=torch.bfloat16)
    assert cost(aten.mm.default, half, half).dtype == torch.bfloat16
    assert cost(aten.ones.default, [3]).dtype == torch.float32


def test_operators_that_are_kernels_of_whole_layers():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    by_hand = 2 * 3 * 5 * (3 * 64 + 64 + 2 * 8 * 16) + 2 * (2 * 3 * 5 * 5 * 8)
    x = torch.ones(3, 5, 8)
    with torch.no_grad():
        fused, plain = measure(layer, x), measure(layer.train(), x)
    assert "_transformer_encoder_layer_fwd" in fused.by_operator and "addmm" in plain.by_operator
    assert fused.flops == plain.flops == by_hand
    with torch.no_grad():
        heads = measure(layer.self_attn.eval(), x, x, x)
    assert heads.flops == 2 * 15 * 4 * 64 + 2 * (2 * 3 * 25 * 8)


def test_a_recurrent_layer_counts_its_products_in_one_kernel_and_in_many():
    x = torch.ones(5, 3, 8)
    gates = 2 * 5 * 3 * (4 * 16 * 8 + 4 * 16 * 16)
    step = lambda net, x: measure(lambda: net(x)[0].sum().backward()).by_phase
    one = step(nn.LSTM(8, 16), x.clone().requires_grad_())
    assert (one["forward"].flops, one["backward"].flops) == (gates, 2 * gates)
    assert measure(nn.LSTM(8, 16, device="meta"), x.to("meta")).flops == gates


def test_inference_mode_counts_the_same():
    net, x = nn.Sequential(nn.Linear(8, 4), nn.ReLU()), torch.ones(5, 8)
    with torch.inference_mode():
        inference = measure(net, x)
    assert inference.flops == measure(net, x).flops == 2 * 5 * 8 * 4
    assert set(inference.by_operator) == {"addmm", "relu"}


def test_tensors_are_found_in_lists_and_sparse_ones_are_not():
    sparse = torch.eye(3).to_sparse()
    assert [len(x) for x in tensors((M, [V, None, (M,)], 3, "x", sparse))] == [6, 4, 6]
