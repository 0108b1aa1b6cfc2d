"""Our count against autograd's own: every kind of model, byte for byte; and the paper's column against its formula."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from minidist.models import TransformerLayer, gpt, next_token_loss
from minidist.study.predict import Transformer, activations, output_activations, scores
from minidist.train.fp8 import eight_bits_
from tests.study.predict.kept import kept
from tests.study.predict.saved import saved, saved_layer

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
VOCAB = 50
CONTEXT = 16
HIDDEN = 24
SIZES = [(2, 4, 3, 8), (1, 4, 1, 8), (1, 1, 3, 8), (1, 2, 2, 1), (3, 2, 2, 5), (1, 1, 1, 1)]
LAYER = Transformer(1, HIDDEN, 4, VOCAB, CONTEXT)


def net_and_batch(device, dtype, dropout, attention, layers, heads, batch, length, tied):
    words = dict(layers=layers, hidden=HIDDEN, heads=heads, vocab=VOCAB, context=CONTEXT, tied=tied)
    net = gpt(**words, dropout=dropout, attention=attention, dtype=dtype, device=device)
    x, y = (torch.randint(0, VOCAB, (batch, length)).to(device) for _ in "xy")
    return net, x, y, Transformer(**words)


@pytest.mark.parametrize(
    ("device", "dtype"),
    [*(("cpu", dtype) for dtype in FLOATS), ("meta", torch.float32), ("meta", torch.bfloat16)],
)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("attention", ["sdpa", "explicit"])
def test_a_model_keeps_what_we_count(device, attention, dropout, dtype):
    for layers, heads, batch, length in SIZES:
        tied = layers == 2
        net, x, y, model = net_and_batch(
            device, dtype, dropout, attention, layers, heads, batch, length, tied
        )
        ours = saved(
            model, batch, length, dtype=dtype, dropout=dropout, attention=attention, device=device
        )
        found = kept(net, lambda net=net, x=x, y=y: next_token_loss(net(x), y))
        assert found == ours.total, (layers, heads, batch, length)


@pytest.mark.parametrize("gelu", ["tanh", "none"])
@pytest.mark.parametrize("attention", ["sdpa", "explicit"])
def test_a_layer_keeps_what_we_count(attention, gelu):
    layer = TransformerLayer(HIDDEN, 4, dropout=0.2, attention=attention, gelu=gelu)
    x = torch.randn(3, 8, HIDDEN, requires_grad=True)
    ours = saved_layer(LAYER, 3, 8, dropout=0.2, attention=attention)
    assert ours.total == kept(layer, lambda: layer(x))


def test_a_layer_of_gpt_3():
    model, half = Transformer(1, 12288, 96, 51200, 2048), dict(dtype=torch.float16, device="meta")
    x = torch.empty(1, 2048, 12288, requires_grad=True, **half)
    for attention in ("sdpa", "explicit"):
        layer = TransformerLayer(12288, 96, dropout=0.1, attention=attention, **half)
        ours = saved_layer(model, 1, dropout=0.1, attention=attention, **half)
        assert ours.total == kept(layer, lambda layer=layer: layer(x))
        assert ours.paper == activations(model, 1) == 2048 * 12288 * (34 + 80)
    small = 2 * 2 * 4 * 2048 + 2048**2  # statistics of two norms, and the causal mask
    assert ours.total - ours.paper == small and small / ours.paper < 0.002


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [(3, 8), (1, 16), (2, 1)])
def test_fused_attention_keeps_no_scores(size, dtype, device):
    """The formula against the tensors that autograd holds, in all but what it leaves out as small."""
    layer = TransformerLayer(HIDDEN, 4, dtype=dtype, device=device)
    x = torch.randn(*size, HIDDEN, dtype=dtype, device=device, requires_grad=True)
    B, T = size
    formula = activations(replace(LAYER, context=T), B, dropout=False, attention="fused")
    assert formula == B * T * (32 * HIDDEN + 4 * 4)
    # mean and deviation of two norms; on a GPU in fp32, and the state of the random numbers
    small = 4 * dtype.itemsize * B * T if device == "cpu" else 4 * 4 * B * T + 24
    assert kept(layer, lambda: layer(x)) == formula + small


def test_a_layer_of_gpt_3_with_fused_attention():
    """Dropout or not, 4 bytes a head and token take the place of the scores."""
    model = Transformer(1, 12288, 96, 51200, 2048)
    x = torch.empty(1, 2048, 12288, requires_grad=True, dtype=torch.bfloat16, device="meta")
    for dropout in (0.0, 0.1):
        layer = TransformerLayer(12288, 96, dropout, dtype=torch.bfloat16, device="meta")
        formula = activations(model, 1, dropout=dropout > 0, attention="fused")
        assert kept(layer, lambda layer=layer: layer(x)) == formula + 4 * 4 * 2048 + 24
        explicit = activations(model, 1, dropout=dropout > 0)
        assert explicit - formula == scores(model, 1, dropout > 0) - 4 * 96 * 2048


def test_what_pytorch_says_of_flash_attention():
    """Its backward asks for queries, keys, values, output and one fp32 number a head and token, and for no scores."""
    schema = torch.ops.aten._scaled_dot_product_flash_attention_backward.default._schema
    tensors = [x.name for x in schema.arguments if str(x.type) == "Tensor"]
    lengths = ["cum_seq_q", "cum_seq_k"]  # of a batch of sequences that are packed
    assert [name for name in tensors if name not in lengths] == [
        *("grad_out", "query", "key", "value", "out", "logsumexp"),
        *("philox_seed", "philox_offset"),
    ]
    q = torch.empty(3, 4, 8, 16, dtype=torch.bfloat16, device="meta")
    found = torch.ops.aten._scaled_dot_product_flash_attention(q, q, q, 0.1, True)
    assert found[1].shape == (3, 4, 8) and found[1].dtype == torch.float32


@pytest.mark.parametrize("t", [1, 2, 4])
@pytest.mark.parametrize("sequence", [True, False])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_fused_attention_on_a_rank(t, sequence, recompute):
    """Item by item: what is split, and what is not."""
    model = Transformer(3, 64, 8, 100, 32)
    words = dict(tensor=t, sequence=sequence, recompute=recompute)
    half = dict(dtype=torch.bfloat16, device="meta")
    items = saved_layer(model, 4, dropout=0.1, **half, **words)
    small = ("mean and deviation of norm", "state of the random numbers")
    ours = sum(item.ours for item in items if not item.name.startswith(small))
    assert ours == activations(model, 4, attention="fused", **words)


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputation(recompute):
    layer = TransformerLayer(HIDDEN, 4, attention="explicit")
    again = dict(use_reentrant=False, preserve_rng_state=False)
    x = torch.randn(3, 8, HIDDEN, requires_grad=True)
    if recompute == "selective":
        plain = layer.attention.explicit
        layer.attention.explicit = lambda q, k, v: checkpoint(plain, q, k, v, **again)
        found = kept(layer, lambda: layer(x))
    else:
        found = kept(layer, lambda: checkpoint(layer, x, **again))
    assert found == saved_layer(LAYER, 3, 8, attention="explicit", recompute=recompute).total


class OneOf(nn.Module):
    """A tensor-parallel rank's part of a layer, without the sums over ranks: they keep nothing."""

    def __init__(self, t):
        super().__init__()
        self.layer = layer = TransformerLayer(HIDDEN, 4, dropout=0.1, attention="explicit")
        layer.attention.heads = 4 // t
        layer.attention.qkv, layer.attention.proj = (
            nn.Linear(HIDDEN, 3 * HIDDEN // t),
            nn.Linear(HIDDEN // t, HIDDEN),
        )
        layer.mlp.fc, layer.mlp.proj = (
            nn.Linear(HIDDEN, 4 * HIDDEN // t),
            nn.Linear(4 * HIDDEN // t, HIDDEN),
        )

    def forward(self, x):
        a, (B, T, _) = self.layer.attention, x.shape
        q, k, v = a.qkv(self.layer.norm_1(x)).view(B, T, a.heads, 3, -1).permute(3, 0, 2, 1, 4)
        x = x + a.dropout(a.proj(a.explicit(q, k, v).transpose(1, 2).reshape(B, T, -1)))
        return x + self.layer.mlp(self.layer.norm_2(x))


@pytest.mark.parametrize("t", [1, 2, 4])
def test_tensor_parallel(t):
    part = OneOf(t)
    x = torch.randn(3, 8, HIDDEN, requires_grad=True)
    ours = saved_layer(LAYER, 3, 8, dropout=0.1, attention="explicit", tensor=t)
    assert ours.total == kept(part, lambda: part(x))


@pytest.mark.parametrize("attention", ["sdpa", "explicit"])
@pytest.mark.parametrize("t", [1, 2, 4])
@pytest.mark.parametrize("sequence", [True, False])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_the_papers_column_is_the_papers_formula(t, sequence, recompute, attention):
    model, words = (
        Transformer(3, 64, 8, 100, 32),
        dict(tensor=t, sequence=sequence, recompute=recompute),
    )
    if attention == "explicit" or recompute != "selective":
        layer = saved_layer(model, 4, device="meta", attention="explicit", **words)
        assert layer.paper == activations(model, 4, **words)
    if attention == "explicit" and sequence:
        every = saved(model, 4, device="meta", attention="explicit", **words)
        ends = 4 * 32 * 64 // t + output_activations(model, 4, t, t)
        assert every.paper == 3 * activations(model, 4, **words) + ends


def test_differences_are_explained():
    items = saved(LAYER, 2, dtype=torch.float32, attention="sdpa", device="meta")
    assert all(item.why for item in items if item.ours != item.paper)
    text = repr(items)
    assert "never stored" in text and "4 bytes each, not 2" in text and "no dropout here" in text
    half = saved(LAYER, 2, dtype=torch.float16, dropout=0.1, attention="explicit", device="meta")
    apart = {item.name for item in half if item.ours != item.paper}
    assert apart == {
        "numbers of tokens",
        "numbers of positions",
        "numbers of targets",
        "sum of the loss's weights",
        "causal mask",
        "mean and deviation of norm 1",
        "mean and deviation of norm 2",
        "mean and deviation of the last norm",
    }


def test_bad_input():
    for wrong, words in (
        (dict(attention="flash"), "'flash' on 'cpu'"),
        (dict(device="cuda"), "'sdpa' on 'cuda'"),
        (dict(recompute="selective"), "only where attention is explicit"),
        (dict(tensor=3), "4 heads do not split over 3"),
    ):
        with pytest.raises(ValueError, match=words):
            saved(LAYER, 1, **wrong)
    with pytest.raises(ValueError, match="without gates"):
        saved_layer(Transformer(1, HIDDEN, 4, VOCAB, CONTEXT, gated=True), 1)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("attention", ["sdpa", "explicit"])
def test_eight_bits_keep_half_of_what_products_read(attention, gated, figure):
    """On "meta", as on a GPU, where one operator does attention. Beside it two scales of 4 bytes for each of 4 products."""
    model = Transformer(1, 64, 4, VOCAB, CONTEXT, ffn=48, gated=gated)
    found = {}
    for bits in (16, 8):
        layer = TransformerLayer(
            64, 4, attention=attention, ffn=48, gated=gated, dtype=torch.bfloat16, device="meta"
        )
        if bits == 8:
            eight_bits_(layer)
        x = torch.empty(3, CONTEXT, 64, dtype=torch.bfloat16, device="meta", requires_grad=True)
        found[bits] = kept(layer, lambda layer=layer, x=x: layer(x))
    form = "fused" if attention == "sdpa" else attention
    formula = [activations(model, 3, dropout=False, attention=form, bits=bits) for bits in (16, 8)]
    assert found[16] - found[8] == formula[0] - formula[1] - 4 * 2 * 4
    figure(f"{attention}, gated {gated}: {found[8]:,} bytes of a layer, {found[16]:,} in 16 bits")
