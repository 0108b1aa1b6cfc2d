"""The GPT: causal, the same with both kinds of attention, equal to a plain computation, and able to learn."""

import math

import pytest
import torch
import torch.nn.functional as F

from minidist.models import GPT, TransformerLayer, gpt, next_token_loss, rotated
from minidist.study.memory.transformer import Transformer, parameters
from tests.largest import largest

SHAPE = dict(layers=2, hidden=32, heads=4, vocab=50, context=16)


def tokens(batch=3, length=12, seed=0):
    return torch.randint(
        0, SHAPE["vocab"], (batch, length), generator=torch.Generator().manual_seed(seed)
    )


def by_hand(model, number):
    """The logits of one sequence, written with loops over positions and heads."""
    p = {k: v.detach() for k, v in model.named_parameters()}
    norm = lambda x, name: F.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"])
    linear = lambda x, name: x @ p[f"{name}.weight"].T + p[f"{name}.bias"]
    heads, size = SHAPE["heads"], SHAPE["hidden"] // SHAPE["heads"]
    x = torch.stack(
        [p["tokens.weight"][t] + p["positions.weight"][i] for i, t in enumerate(number)]
    )
    for layer in range(SHAPE["layers"]):
        name = f"layers.{layer}."
        rows = linear(norm(x, name + "norm_1"), name + "attention.qkv")
        out = torch.zeros_like(x)
        for head in range(heads):
            q, k, v = (rows[:, (3 * head + j) * size : (3 * head + j + 1) * size] for j in range(3))
            for i in range(len(x)):
                weights = torch.softmax(k[: i + 1] @ q[i] / math.sqrt(size), 0)
                out[i, head * size : (head + 1) * size] = weights @ v[: i + 1]
        x = x + linear(out, name + "attention.proj")
        wide = linear(norm(x, name + "norm_2"), name + "mlp.fc")
        x = x + linear(F.gelu(wide, approximate="tanh"), name + "mlp.proj")
    head = p.get("head.weight", p["tokens.weight"])
    return norm(x, "norm") @ head.T


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("attention", ["sdpa", "explicit"])
def test_logits_by_hand(tied, attention):
    model = gpt(**SHAPE, tied=tied, attention=attention, dtype=torch.float64)
    x = tokens()
    assert (model(x)[1] - by_hand(model, x[1])).abs().max() < 1e-12


def test_gradients_do_not_depend_on_the_kind_of_attention():
    grads = []
    for attention in ("sdpa", "explicit"):
        model = gpt(**SHAPE, attention=attention, dtype=torch.float64)
        next_token_loss(model(tokens()), tokens(seed=1)).backward()
        grads.append([p.grad for p in model.parameters()])
    assert largest((a - b).abs().max() for a, b in zip(*grads, strict=True)) < 1e-13


def test_the_future_is_not_seen():
    model, x = gpt(**SHAPE), tokens()
    other = x.clone()
    other[:, 7] = (other[:, 7] + 1) % SHAPE["vocab"]
    same = model(x) == model(other)
    assert same[:, :7].all() and not same[:, 7:].all(-1).any()


@pytest.mark.parametrize("tied", [True, False])
def test_parameters(tied):
    model = gpt(**SHAPE, tied=tied)
    count = 2 * (12 * 32**2 + 13 * 32) + (50 + 16) * 32 + 2 * 32 + (not tied) * 50 * 32
    assert sum(p.numel() for p in model.parameters()) == count
    assert ("head.weight" in model.state_dict()) is not tied


def test_known_sizes():
    sizes = lambda *shape: sum(p.numel() for p in gpt(*shape, device="meta").parameters())
    assert sizes(12, 768, 12, 50257, 1024) == 124_439_808  # GPT-2 small, as its checkpoint has it
    assert sizes(48, 1600, 25, 50257, 1024) == 1_557_611_200  # GPT-2 XL
    assert round(sizes(96, 12288, 96, 50257, 2048), -8) == 174_600_000_000  # GPT-3's Table D.1


def test_initial_values_belong_to_names_and_the_loss_starts_near_that_of_chance():
    a, b = gpt(**SHAPE, seed=1), gpt(**{**SHAPE, "layers": 1}, seed=1)
    assert torch.equal(a.layers[0].mlp.fc.weight, b.layers[0].mlp.fc.weight)
    assert not torch.equal(a.layers[0].mlp.fc.weight, a.layers[1].mlp.fc.weight)
    assert next_token_loss(a(tokens()), tokens(seed=1)).item() == pytest.approx(
        math.log(50), abs=1.0
    )


def test_it_learns():
    model, x = gpt(**SHAPE), tokens(8, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(40):
        loss = next_token_loss(model(x[:, :-1]), x[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


def test_dropout_drops_a_part_keeps_the_mean_and_rests_in_evaluation():
    layer = TransformerLayer(64, 4, dropout=0.25)
    x = torch.ones(40, 50, 64)
    dropped = layer.mlp.dropout(x)
    assert (dropped == 0).float().mean().item() == pytest.approx(0.25, abs=0.01)
    assert dropped.unique().tolist() == pytest.approx([0, 4 / 3])
    layer.eval()
    assert torch.equal(layer(x), layer(x)) and layer.mlp.dropout(x) is x
    layer.train()
    assert not torch.equal(layer(x), layer(x))


@pytest.mark.parametrize("attention", ["sdpa", "explicit"])
def test_attention_drops_weights_too(attention):
    layer = TransformerLayer(16, 2, dropout=0.5, attention=attention).attention
    layer.dropout.p = 0.0
    x = torch.randn(2, 8, 16)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_grouped_queries_by_hand():
    """Three queries share a key: the rows of qkv are, for each group, three queries, a key and a value."""
    block, x = (
        TransformerLayer(12, 6, kv_heads=2, dtype=torch.float64).attention,
        torch.randn(1, 5, 12).double(),
    )
    rows = (x @ block.qkv.weight.T + block.qkv.bias)[0]  # (5, 20): 2 groups of (3 + 1 + 1) × 2
    heads = []
    for head in range(6):
        q, k, v = (
            rows[:, 10 * (head // 3) + 2 * i : 10 * (head // 3) + 2 * i + 2]
            for i in (head % 3, 3, 4)
        )
        scores = (q @ k.T / math.sqrt(2)).masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf)
        heads.append(scores.softmax(-1) @ v)
    assert (
        block(x)[0] - torch.cat(heads, -1) @ block.proj.weight.T - block.proj.bias
    ).abs().max() < 1e-12
    count = sum(p.numel() for p in gpt(**SHAPE, kv_heads=2).layers[0].parameters())
    # 2 of 4 heads of keys and of values are gone
    assert count == 12 * 32**2 + 13 * 32 - 2 * (32 // 2) * (32 + 1)


@pytest.mark.parametrize("rotary", [False, True])
def test_grouped_queries_are_repeated_keys(rotary):
    """Against the textbook's way: keys and values repeated, queries, keys and values as matrices of their own."""
    block = TransformerLayer(24, 6, kv_heads=2, rotary=rotary, dtype=torch.float64).attention
    x = torch.randn(3, 7, 24, dtype=torch.float64)
    weight, bias = block.qkv.weight.view(2, 5, 4, 24), block.qkv.bias.view(2, 5, 4)
    make = lambda rows: F.linear(x, weight[:, rows].flatten(0, 2), bias[:, rows].flatten()).view(
        3, 7, -1, 4
    )
    q, k, v = (make(rows).transpose(1, 2) for rows in (slice(0, 3), slice(3, 4), slice(4, 5)))
    if rotary:
        q, k = rotated(q), rotated(k)
    k, v = (part.repeat_interleave(3, 1) for part in (k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    assert (block(x) - block.proj(out)).abs().max() < 1e-13


@pytest.mark.parametrize("ffn", [None, 11])
def test_swiglu_by_hand(ffn):
    block = TransformerLayer(8, 2, gated=True, ffn=ffn, dtype=torch.float64).mlp
    x, width = torch.randn(2, 5, 8, dtype=torch.float64), ffn or 32
    gate, up = (F.linear(x, block.fc.weight[i::2], block.fc.bias[i::2]) for i in (0, 1))
    expected = F.linear(gate / (1 + (-gate).exp()) * up, block.proj.weight, block.proj.bias)
    assert (block(x) - expected).abs().max() < 1e-14
    assert sum(p.numel() for p in block.parameters()) == 3 * 8 * width + 2 * width + 8


@pytest.mark.parametrize(
    ("options", "model"),
    [
        (dict(kv_heads=2, gated=True, ffn=20, rotary=True, tied=False), dict(positions=False)),
        (dict(ffn=20), {}),
        (dict(gated=True, rotary=True), dict(positions=False)),
    ],
)
def test_parameters_with_options(options, model):
    """As the calculator counts them, which does not know this model."""
    known = {key: value for key, value in options.items() if key != "rotary"}
    counted = parameters(Transformer(**SHAPE, **known, **model))
    assert sum(p.numel() for p in gpt(**SHAPE, **options, device="meta").parameters()) == counted


def test_a_layer_of_gpt_3_without_memory():
    layer = TransformerLayer(12288, 96, device="meta", dtype=torch.float16)
    assert sum(p.numel() for p in layer.parameters()) == 12 * 12288**2 + 13 * 12288
    x = torch.empty(1, 2048, 12288, device="meta", dtype=torch.float16, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad.shape == x.shape and layer.mlp.fc.weight.grad.is_meta


def test_the_loss():
    logits, targets = (
        torch.randn(2, 3, 5, dtype=torch.float64),
        torch.tensor([[0, 1, 2], [3, 4, 0]]),
    )
    chosen = logits.log_softmax(-1).gather(-1, targets[..., None])
    assert next_token_loss(logits, targets).item() == pytest.approx(
        -chosen.mean().item(), abs=1e-14
    )
    assert next_token_loss(logits, targets).dtype == torch.float64
    assert next_token_loss(logits.bfloat16(), targets).dtype == torch.float32


def test_bad_input():
    with pytest.raises(ValueError, match=r"5 heads.*32"):
        gpt(**{**SHAPE, "heads": 5})
    with pytest.raises(ValueError, match=r"3 heads of keys.*4 heads"):
        gpt(**SHAPE, kv_heads=3)
    with pytest.raises(ValueError, match="at least 1 feature, not 0"):
        gpt(**SHAPE, ffn=0)
    with pytest.raises(ValueError, match="17 tokens do not fit into a context of 16"):
        gpt(**SHAPE)(torch.zeros(1, 17, dtype=torch.long))
    with pytest.raises(ValueError, match="'sdpa' or 'explicit', not 'flash'"):
        GPT(**SHAPE, attention="flash")
