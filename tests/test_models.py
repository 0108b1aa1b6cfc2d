"""The models: a GPT, whole and in parts, an MLP and a residual network; rotary positions; initial values by name."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minidist import models
from minidist.comm import Cluster, World
from minidist.models import (
    GPT,
    TransformerLayer,
    generator,
    gpt,
    initial,
    initial_,
    mlp,
    names,
    next_token_loss,
    resnet,
    rotated,
    seeded_,
    sequence,
    stage_of,
)
from minidist.parallel.tensor import RowFirstMLP
from minidist.split import Cut, uneven
from minidist.study.predict import Transformer, parameters
from tests.largest import largest
from tests.one_thread import _one_thread  # noqa: F401
from tests.parallel.tensor_cases import tensor_layer

GPT_SHAPE = dict(layers=2, hidden=32, heads=4, vocab=50, context=16)


def tokens_gpt(batch=3, length=12, seed=0):
    return torch.randint(
        0, GPT_SHAPE["vocab"], (batch, length), generator=torch.Generator().manual_seed(seed)
    )


def by_hand(model, number):
    """The logits of one sequence, written with loops over positions and heads."""
    p = {k: v.detach() for k, v in model.named_parameters()}
    norm = lambda x, name: F.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"])
    linear = lambda x, name: x @ p[f"{name}.weight"].T + p[f"{name}.bias"]
    heads, size = GPT_SHAPE["heads"], GPT_SHAPE["hidden"] // GPT_SHAPE["heads"]
    x = torch.stack(
        [p["tokens.weight"][t] + p["positions.weight"][i] for i, t in enumerate(number)]
    )
    for layer in range(GPT_SHAPE["layers"]):
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
    model = gpt(**GPT_SHAPE, tied=tied, attention=attention, dtype=torch.float64)
    x = tokens_gpt()
    assert (model(x)[1] - by_hand(model, x[1])).abs().max() < 1e-12


def test_gradients_do_not_depend_on_the_kind_of_attention():
    grads = []
    for attention in ("sdpa", "explicit"):
        model = gpt(**GPT_SHAPE, attention=attention, dtype=torch.float64)
        next_token_loss(model(tokens_gpt()), tokens_gpt(seed=1)).backward()
        grads.append([p.grad for p in model.parameters()])
    assert largest((a - b).abs().max() for a, b in zip(*grads, strict=True)) < 1e-13


def test_the_future_is_not_seen():
    model, x = gpt(**GPT_SHAPE), tokens_gpt()
    other = x.clone()
    other[:, 7] = (other[:, 7] + 1) % GPT_SHAPE["vocab"]
    same = model(x) == model(other)
    assert same[:, :7].all() and not same[:, 7:].all(-1).any()


@pytest.mark.parametrize("tied", [True, False])
def test_gpt_parameters(tied):
    model = gpt(**GPT_SHAPE, tied=tied)
    count = 2 * (12 * 32**2 + 13 * 32) + (50 + 16) * 32 + 2 * 32 + (not tied) * 50 * 32
    assert sum(p.numel() for p in model.parameters()) == count
    assert ("head.weight" in model.state_dict()) is not tied


def test_known_sizes():
    sizes = lambda *shape: sum(p.numel() for p in gpt(*shape, device="meta").parameters())
    assert sizes(12, 768, 12, 50257, 1024) == 124_439_808  # GPT-2 small, as its checkpoint has it
    assert sizes(48, 1600, 25, 50257, 1024) == 1_557_611_200  # GPT-2 XL
    assert round(sizes(96, 12288, 96, 50257, 2048), -8) == 174_600_000_000  # GPT-3's Table D.1


def test_initial_values_belong_to_names_and_the_loss_starts_near_that_of_chance():
    a, b = gpt(**GPT_SHAPE, seed=1), gpt(**{**GPT_SHAPE, "layers": 1}, seed=1)
    assert torch.equal(a.layers[0].mlp.fc.weight, b.layers[0].mlp.fc.weight)
    assert not torch.equal(a.layers[0].mlp.fc.weight, a.layers[1].mlp.fc.weight)
    assert next_token_loss(a(tokens_gpt()), tokens_gpt(seed=1)).item() == pytest.approx(
        math.log(50), abs=1.0
    )


def test_it_learns():
    model, x = gpt(**GPT_SHAPE), tokens_gpt(8, 16)
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
    count = sum(p.numel() for p in gpt(**GPT_SHAPE, kv_heads=2).layers[0].parameters())
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


def test_the_root_of_the_mean_square_by_hand():
    model = gpt(**GPT_SHAPE, norm="rms", eps=0.25, dtype=torch.float64)
    norms = [m for m in model.modules() if isinstance(m, models.RMSNorm)]
    assert len(norms) == 5 and not any(name.endswith("norm.bias") for name in model.state_dict())
    x, scale = torch.tensor([3.0, 4.0], dtype=torch.float64), torch.tensor([2.0, 10.0])
    norm = models.normalization(2, "rms", 0.25, dtype=torch.float64)
    norm.weight.data.copy_(scale)
    # √(25/2 + 1/4) = √12.75
    assert norm(x).tolist() == pytest.approx([6 / 12.75**0.5, 40 / 12.75**0.5], rel=1e-12)


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
        (
            dict(kv_heads=2, gated=True, ffn=20, rotary=True, bias=False, norm="rms"),
            dict(positions=False),
        ),
    ],
)
def test_parameters_with_options(options, model):
    """As the calculator counts them, which does not know this model."""
    known = {key: value for key, value in options.items() if key not in ("rotary", "norm")}
    counted = parameters(Transformer(**GPT_SHAPE, **known, **model))
    assert (
        sum(p.numel() for p in gpt(**GPT_SHAPE, **options, device="meta").parameters()) == counted
    )


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
        gpt(**{**GPT_SHAPE, "heads": 5})
    with pytest.raises(ValueError, match=r"3 heads of keys.*4 heads"):
        gpt(**GPT_SHAPE, kv_heads=3)
    for experts in ({}, dict(experts=2)):
        with pytest.raises(ValueError, match="no option dropuot"):
            gpt(**GPT_SHAPE, **experts, dropuot=0.1)
    with pytest.raises(ValueError, match="at least 1 feature, not 0"):
        gpt(**GPT_SHAPE, ffn=0)
    with pytest.raises(ValueError, match="17 tokens do not fit into a context of 16"):
        gpt(**GPT_SHAPE)(torch.zeros(1, 17, dtype=torch.long))
    with pytest.raises(ValueError, match="'sdpa' or 'explicit', not 'flash'"):
        GPT(**GPT_SHAPE, attention="flash")
    with pytest.raises(ValueError, match="norm is one of 'layer', 'rms', not 'batch'"):
        gpt(**GPT_SHAPE, norm="batch")
    with pytest.raises(ValueError, match=r"eps.*at least 0, not -1"):
        gpt(**GPT_SHAPE, eps=-1)
    with pytest.raises(ValueError, match=r"theta.*at least 1, not 0"):
        gpt(**GPT_SHAPE, rotary=True, theta=0)


# ------------------------------------------------------------
# On the device "meta" a model is built for nothing; elsewhere its parts are torch's own.


MAKES = {
    "mlp": lambda comm: mlp([64, 128, 10], device="meta"),
    "resnet": lambda comm: resnet(50, device="meta"),
    "GPT": lambda comm: GPT(2, 32, 4, 50, 16, device="meta"),
    "gpt": lambda comm: gpt(2, 32, 4, 50, 16, tied=False, device="meta"),
    "layer": lambda comm: tensor_layer(24, 4, comm, kv_heads=2),
    "layer, sequence": lambda comm: tensor_layer(24, 4, comm, sequence=True),
    "rows first": lambda comm: RowFirstMLP(24, comm),
}


@pytest.mark.parametrize("name", MAKES)
def test_what_is_built_on_meta_takes_no_time_and_no_memory_but_its_own(name):
    # of batch norm: torch fills them as it makes them
    statistics = {"zeros", "ones"} if name == "resnet" else set()

    def program(comm):
        model = MAKES[name](comm)
        assert all(x.is_meta for x in [*model.parameters(), *model.buffers()])
        return model, sum(x.nbytes for x in [*model.parameters(), *model.buffers()])

    world = World(2, cluster=Cluster.dgx_h100(), device="meta")
    results = world.run(program)
    assert {span.name for span in world.trace.spans} <= statistics
    assert (world.time == 0) == (not statistics)
    assert all(world.trace.memory[r].peak <= results[r][1] for r in range(2))


TORCHS = {
    "Linear": (4, 3),
    "Embedding": (5, 3),
    "LayerNorm": (3,),
    "Conv2d": (2, 3, 3),
    "BatchNorm2d": (3,),
}


@pytest.mark.parametrize("kind", TORCHS)
def test_elsewhere_they_are_torchs(kind):
    made = []
    for place in (models, nn):
        torch.manual_seed(0)
        made.append(getattr(place, kind)(*TORCHS[kind]).state_dict())
    assert list(made[0]) == list(made[1]) and all(
        torch.equal(made[0][k], made[1][k]) for k in made[0]
    )


# ------------------------------------------------------------
# The MLP: its layers and shapes.


def test_layers_and_shapes():
    model = mlp([64, 128, 10])
    assert [tuple(p.shape) for p in model.parameters()] == [(128, 64), (128,), (10, 128), (10,)]
    assert all(
        isinstance(layer, kind)
        for layer, kind in zip(model, (nn.Linear, nn.ReLU, nn.Linear), strict=True)
    )
    assert model(torch.zeros(3, 64)).shape == (3, 10)
    assert mlp([4, 5, 6, 7])[-1].out_features == 7


def test_one_size_is_too_few():
    with pytest.raises(ValueError, match=r"2 sizes.*1: \[64\]"):
        mlp([64])


def test_meta_needs_no_memory():
    model = mlp([10**6, 10**6], device="meta")
    assert all(p.is_meta for p in model.parameters())


# ------------------------------------------------------------
# The residual network: its published sizes and shapes, and that it learns.


@pytest.mark.parametrize(
    ("depth", "params"),
    [
        # He et al. 2016, as torchvision's checkpoints have them.
        (18, 11_689_512),
        (34, 21_797_672),
        (50, 25_557_032),
        (101, 44_549_160),
        (152, 60_192_808),
    ],
)
def test_resnet_parameters(depth, params):
    model = resnet(depth, device="meta")
    assert sum(p.numel() for p in model.parameters()) == params
    layers = [
        name
        for name, m in model.named_modules()
        if isinstance(m, (torch.nn.Conv2d, torch.nn.Linear))
    ]
    assert len([name for name in layers if "shortcut" not in name]) == depth


def test_shapes_at_the_size_of_imagenet():
    model, seen = resnet(50, device="meta"), []
    for block in model.blocks:
        block.register_forward_hook(lambda m, x, y: seen.append(tuple(y.shape[1:])))
    assert model(torch.empty(8, 3, 224, 224, device="meta")).shape == (8, 1000)
    assert list(dict.fromkeys(seen)) == [(256, 56, 56), (512, 28, 28), (1024, 14, 14), (2048, 7, 7)]


def test_small_images_learn_and_running_means_follow():
    model = resnet(18, classes=4, channels=1, width=4, small=True)
    assert all(
        m.running_var.eq(1).all() and m.running_mean.eq(0).all() and m.num_batches_tracked == 0
        for m in model.modules()
        if isinstance(m, torch.nn.BatchNorm2d)
    )
    x = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(16) % 4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(12):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    assert model.stem[1].num_batches_tracked == 12 and not model.stem[1].running_mean.eq(0).any()


def test_a_block_is_a_sum():
    block = resnet(50, width=4).blocks[1].eval()
    x = torch.randn(1, 16, 5, 5).relu()
    with torch.no_grad():
        block.convs[-1][1].weight.zero_()
        assert torch.equal(block(x), x)


def test_another_depth():
    with pytest.raises(ValueError, match=r"18, 34, 50, 101, 152, not 20"):
        resnet(20)


# ------------------------------------------------------------
# Rotary positions against the complex numbers of the paper, and what they are for: only distances count.


ROTARY_SHAPE = dict(layers=2, hidden=24, heads=4, vocab=50, context=16, dtype=torch.float64)


def by_complex_numbers(x, base=10000.0):
    T, size = x.shape[-2:]
    speeds = torch.tensor([base ** (-2 * i / size) for i in range(size // 2)], dtype=torch.float64)
    turns = torch.polar(
        torch.ones(T, size // 2, dtype=torch.float64), torch.outer(torch.arange(T).double(), speeds)
    )
    return torch.view_as_real(
        torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turns
    ).flatten(-2)


def test_the_formula():
    x = torch.randn(2, 3, 9, 8, dtype=torch.float64)
    assert (rotated(x) - by_complex_numbers(x)).abs().max() < 1e-14
    assert torch.equal(rotated(x)[:, :, 0], x[:, :, 0])


def test_only_distances_count():
    q, k = torch.randn(2, 6, dtype=torch.float64)
    scores = rotated(q.expand(12, 6)) @ rotated(k.expand(12, 6)).T
    for distance in range(-11, 12):
        along = scores.diagonal(distance)
        assert (along - along[0]).abs().max() < 1e-13
    assert (scores[0] - scores[0, 0]).abs()[1:].min() > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(dtype):
    x = torch.randn(5, 300, 8, dtype=torch.float64).to(dtype)
    assert rotated(x).dtype == dtype
    assert (rotated(x).double() - by_complex_numbers(x.double())).abs().max() < 300 * torch.finfo(
        torch.float32
    ).eps + 4 * torch.finfo(dtype).eps


def test_a_gpt_without_added_positions():
    model = gpt(**ROTARY_SHAPE, rotary=True)
    assert "positions.weight" not in model.state_dict()
    x = torch.randint(0, 50, (2, 9))
    swapped = x[:, [1, 0, *range(2, 9)]]
    assert (model(x)[:, -1] - model(swapped)[:, -1]).abs().max() > 1e-3  # the order counts
    for block in model.layers:
        block.attention.rotary = False
    one = model.layers[:1]  # one layer without positions: the last token sees a set
    out = [one[0](model.embed(tokens))[:, -1] for tokens in (x, swapped)]
    assert (out[0] - out[1]).abs().max() < 1e-12


def test_another_speed():
    x = torch.randn(9, 8, dtype=torch.float64)
    a, b = rotated(x, 100.0)[5, 2:4], x[5, 2:4]
    angle = 5 * 100.0 ** (-2 / 8)
    cos, sin = math.cos(angle), math.sin(angle)
    assert a.tolist() == pytest.approx(
        [cos * b[0].item() - sin * b[1].item(), sin * b[0].item() + cos * b[1].item()], rel=1e-12
    )
    shape = ROTARY_SHAPE | dict(rotary=True)
    tokens = torch.randint(0, 50, (2, 9))
    assert (gpt(**shape)(tokens) - gpt(**shape, theta=100.0)(tokens)).abs().max() > 1e-4


def test_odd_heads():
    with pytest.raises(ValueError, match=r"heads of size 24/8 = 3 are odd"):
        gpt(**ROTARY_SHAPE | dict(heads=8), rotary=True)
    with pytest.raises(ValueError, match="17 tokens do not fit into a context of 16"):
        gpt(**ROTARY_SHAPE, rotary=True)(torch.zeros(1, 17, dtype=torch.long))


# ------------------------------------------------------------
# Initial values belong to names.


def test_the_same_seed_gives_the_same_model_and_another_another():
    a = mlp([8, 8, 8], seed=1)
    b = mlp([8, 8, 8], seed=1)
    c = mlp([8, 8, 8], seed=2)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a[0].weight, c[0].weight)
    assert not torch.equal(a[0].weight, a[2].weight)  # one shape, two names


def test_values_do_not_depend_on_what_was_drawn_before():
    whole = mlp([6, 5, 4, 3], seed=3)
    torch.manual_seed(99)
    assert torch.equal(mlp([6, 5, 4], seed=3)[2].weight, whole[2].weight)
    before = torch.get_rng_state()
    mlp([6, 5, 4])
    assert torch.equal(before, torch.get_rng_state())


def test_a_part_cut_from_the_whole_starts_equal():
    whole = mlp([6, 8], seed=3, dtype=torch.float64)
    parts = [initial(3, "0.weight", (8, 6)).chunk(2)[rank] for rank in range(2)]
    assert torch.equal(torch.cat(parts), whole[0].weight)


def test_always_the_same_numbers():
    known = torch.tensor(
        [[0.641404750957, 0.307129568990], [-0.267303036476, -0.396434331878]], dtype=torch.float64
    )
    assert torch.allclose(initial(0, "0.weight", (2, 2)), known, atol=1e-11)
    assert generator(1, "2.weight").initial_seed() != generator(12, ".weight").initial_seed()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_other_dtypes_are_the_float64_values_rounded(dtype):
    exact, rounded = mlp([6, 5, 4], dtype=torch.float64), mlp([6, 5, 4], dtype=dtype)
    for p, q in zip(exact.parameters(), rounded.parameters(), strict=True):
        assert q.dtype == dtype and torch.equal(p.to(dtype), q)


def test_scale():
    weight = initial(0, "w", (500, 400))
    assert (
        weight.std().item() == pytest.approx(400**-0.5, rel=0.01)
        and abs(weight.mean().item()) < 3e-4
    )
    assert initial(0, "conv", (64, 8, 5, 5)).std().item() == pytest.approx(200**-0.5, rel=0.02)


def test_vectors():
    layer = seeded_(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)))
    assert layer[0].bias.eq(0).all() and layer[1].bias.eq(0).all() and layer[1].weight.eq(1).all()
    assert initial(0, "scale", ()) == 1 and initial(0, "w", (3, 0)).shape == (3, 0)


def test_tied_parameters_stay_tied():
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    seeded_(tied, 5)
    assert tied[1].weight is tied[0].weight and torch.equal(
        tied[1].weight, initial(5, "0.weight", (4, 4)).float()
    )


def drawn_at_once(name, shape):
    """The whole by one call of torch: what the blocks must put together."""
    return (
        torch.empty(shape, dtype=torch.float64).normal_(generator=generator(3, name))
        * shape[-1] ** -0.5
    )


@pytest.mark.parametrize("block", [1, 100, models.BLOCK])
@pytest.mark.parametrize(
    "shape", [(1, 1), (3, 5), (16, 1), (17, 1), (31, 1), (32, 1), (47, 3), (49, 3), (100, 7)]
)
def test_blocks_do_not_change_the_numbers(block, shape, monkeypatch):
    monkeypatch.setattr(models, "BLOCK", block)
    assert torch.equal(initial(3, "a.weight", shape), drawn_at_once("a.weight", shape))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_every_split_has_the_numbers_of_the_whole(n, dim, monkeypatch):
    monkeypatch.setattr(models, "BLOCK", 100)
    shape = (70, 5)
    whole, cut = drawn_at_once("w", shape), Cut(dim, uneven(shape[dim], n))
    for rank, size in enumerate(cut.sizes):
        part = torch.empty(cut.shape(shape, size))  # rounded to float32
        assert torch.equal(initial_(part, 3, "w", cut, rank), cut.part(whole, rank).float())


def test_drawing_takes_one_block_of_memory(monkeypatch):
    monkeypatch.setattr(models, "BLOCK", 1000)

    def program(comm, dim):
        part = torch.empty((500, 400) if dim == 0 else (4000, 50))
        initial_(part, 0, "w", Cut(dim, [part.shape[dim]] * 8))
        return part.nbytes

    for dim in (0, 1):
        world = World(1, cluster=Cluster.dgx_h100(), device="cpu")
        [part] = world.run(program, dim)
        assert part < world.trace.memory[0].peak <= part + 16 * 400 * 8


def test_a_part_that_is_not_there():
    with pytest.raises(ValueError, match="rank 1 has 3 of 8 along dimension 1 of w, not 4"):
        initial_(torch.empty(2, 4), 0, "w", Cut(1, [5, 3]), 1)
    assert initial_(torch.empty(2, 4, device="meta"), 0, "w").is_meta


# ------------------------------------------------------------
# The parts of a GPT: the same computation, the same parameters, also when a stage is made alone.


SEQUENCE_SHAPE = dict(layers=3, hidden=16, heads=2, vocab=29, context=8, dtype=torch.float64)


def tokens_sequence(seed=0):
    return torch.randint(0, 29, (2, 6), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("tied", [True, False])
def test_the_parts_compute_the_same(tied):
    model = gpt(**SEQUENCE_SHAPE, tied=tied)
    parts = sequence(model)
    assert len(parts) == 5 and torch.equal(parts(tokens_sequence()), model(tokens_sequence()))
    assert {id(p) for p in parts.parameters()} == {id(p) for p in model.parameters()}
    next_token_loss(parts(tokens_sequence()), tokens_sequence(1)).backward()
    other = gpt(**SEQUENCE_SHAPE, tied=tied)
    next_token_loss(other(tokens_sequence()), tokens_sequence(1)).backward()
    for name, p in other.named_parameters():
        assert torch.equal(model.get_parameter(name).grad, p.grad), name


@pytest.mark.parametrize("tied", [True, False])
def test_names(tied):
    model = gpt(**SEQUENCE_SHAPE, tied=tied)
    known, parts = names(model), sequence(model)
    for name, whole in known.items():
        assert parts.get_parameter(name) is model.get_parameter(whole)
    assert set(known.values()) == {name for name, _ in model.named_parameters()}
    tokens_in = [name for name, whole in known.items() if whole == "tokens.weight"]
    assert tokens_in == (["0.tokens.weight", "4.tokens.weight"] if tied else ["0.tokens.weight"])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("first", "end"), [(0, 5), (0, 1), (1, 3), (4, 5), (2, 2)])
def test_a_stage_alone_has_the_numbers_of_the_whole(first, end, tied):
    whole = sequence(gpt(**SEQUENCE_SHAPE, tied=tied, seed=3))[first:end]
    meta = gpt(**SEQUENCE_SHAPE, tied=tied, device="meta")
    alone = stage_of(meta, first, end, seed=3)
    assert all(p.is_meta for p in meta.parameters())
    expected, found = (dict(m.named_parameters(remove_duplicate=False)) for m in (whole, alone))
    assert list(expected) == list(found)
    assert all(torch.equal(expected[name], p) for name, p in found.items())
    assert len(set(found.values())) == len(set(expected.values())), "a tied parameter is one"


@pytest.mark.parametrize(("first", "end"), [(0, 6), (3, 2), (-1, 2)])
def test_parts_that_there_are_not(first, end):
    with pytest.raises(ValueError, match=f"{first} to {end} of a model of 5"):
        stage_of(gpt(**SEQUENCE_SHAPE, device="meta"), first, end)


def test_too_many_tokens():
    with pytest.raises(ValueError, match=r"9 tokens .* context of 8"):
        sequence(gpt(**SEQUENCE_SHAPE))(torch.zeros(1, 9, dtype=torch.int64))
