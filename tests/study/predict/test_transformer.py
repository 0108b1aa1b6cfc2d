"""Parameters and FLOPs: SC21's table, real models, and PyTorch's own counter."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from minidist.models import gpt, next_token_loss
from minidist.study import predict, published
from minidist.study.predict import Transformer, utilization
from tests.study.predict.kept import published_hardware_flops

A100 = 312 * 10**12


def shape(row):
    return Transformer(*(row[k] for k in ("layers", "hidden", "heads", "vocab", "seq")))


def equation_2(model):
    """Parameters as SC21 counts them: without the last norm."""
    return predict.parameters(model) - 2 * model.hidden


def test_sc21_table_1():
    """Every row: parameters by equation 2, FLOPs by equation 3, and from them time and percent of peak."""
    rows = published("megatron_sc21_table1")
    assert len(rows) == 35
    rate = {r["model"]: r["value"] for r in rows if r["quantity"] == "achieved_per_gpu"}  # TFLOP/s
    for row in rows:
        model = shape(row)
        quantity = row["quantity"]
        value = row["value"]
        done = predict.flops(model, row["batch"], recompute="full")
        seconds = done / (row["gpus"] * rate[row["model"]] * 1e12)
        if quantity == "params_formula":
            assert equation_2(model) == value
        elif quantity == "params" and value == 1.7:  # the exact number would print as 1.65
            assert equation_2(model) / 1e9 == pytest.approx(1.652, abs=5e-4)
        elif quantity == "params":
            assert equation_2(model) / 1e9 == pytest.approx(value, abs=0.05)
        elif quantity == "flops_per_iteration":
            assert float(f"{done:.5e}") == pytest.approx(value, rel=1e-12)
        elif quantity == "iteration_time":
            assert seconds == pytest.approx(value, abs=5e-4)
        elif quantity == "percent_of_peak":
            assert round(100 * utilization(done, seconds, row["gpus"], A100)) == value
        else:  # achieved a GPU, and all together in PFLOP/s: printed from unrounded figures
            together = {r["model"]: r["value"] for r in rows if r["quantity"] == "aggregate"}[
                row["model"]
            ]
            assert together * 1e3 / row["gpus"] == pytest.approx(rate[row["model"]], abs=0.55)


def test_equations_of_sc21_as_they_are_printed():
    for row in published("megatron_sc21_table1"):
        model, B = shape(row), row["batch"]
        l = model.layers
        h = model.hidden
        V = model.vocab
        s = model.context
        printed = 12 * l * h**2 * (1 + 13 / (12 * h) + (V + s) / (12 * l * h))
        assert equation_2(model) == pytest.approx(printed, rel=1e-12)
        printed = 96 * B * s * l * h**2 * (1 + s / (6 * h) + V / (16 * l * h))
        assert predict.flops(model, B, recompute="full") == pytest.approx(printed, rel=1e-12)
        assert predict.flops(model, B) == pytest.approx(
            72 * B * l * s * h**2 * (1 + s / (6 * h) + V / (12 * h * l))
        )
        twice = 72 * B * l * s * h**2 * (1 + s / (3 * h) + V / (12 * h * l))
        assert published_hardware_flops(model, B) == pytest.approx(twice, rel=1e-12)
        once = 72 * B * l * s * h**2 * (1 + 2 * s / (9 * h) + V / (12 * h * l))
        assert predict.flops(model, B, recompute="selective") == pytest.approx(once, rel=1e-12)


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_of_real_models(tied):
    for numbers in ((1, 8, 2, 5, 3), (3, 12, 3, 7, 2)):
        words = dict(zip(("layers", "hidden", "heads", "vocab", "context"), numbers, strict=True))
        real = list(gpt(**words, tied=tied, device="meta").parameters())
        model = Transformer(**words, tied=tied)
        assert predict.parameters(model) == sum(p.numel() for p in real)


def test_other_models():
    words = dict(tied=False, gated=True, bias=False, positions=False)
    llama = Transformer(40, 5120, 40, 32000, 2048, ffn=13824, **words)
    assert predict.parameters(llama) == 13_015_864_320
    llama2 = Transformer(80, 8192, 64, 32000, 4096, ffn=28672, kv_heads=8, **words)
    assert predict.parameters(llama2) == 68_976_648_192  # LLaMA-2 70B, as its checkpoint has it
    bloom = Transformer(70, 14336, 112, 250880, 2048, positions=False)
    said = {
        r["quantity"]: r["value"] for r in published("training_runs") if r["model"] == "BLOOM-176B"
    }
    assert predict.layer_parameters(bloom) == said["layer_params"] == 12 * 14336**2 + 13 * 14336
    assert bloom.vocab * bloom.hidden == said["embedding_params"]
    assert round(predict.parameters(bloom) / 1e9) == said["params_formula"]


@pytest.mark.parametrize(
    ("attention", "device", "again"),
    [
        ("explicit", "cpu", 0),
        ("explicit", "meta", 0),
        ("sdpa", "meta", 1),  # a fused operator multiplies queries and keys again in its backward
    ],
)
def test_flops_as_pytorch_counts_them(attention, device, again):
    words = dict(layers=2, hidden=32, heads=4, vocab=50, context=12)
    net, x = (
        gpt(**words, attention=attention, device=device),
        torch.zeros(3, 12, dtype=torch.long, device=device),
    )
    with FlopCounterMode(display=False) as forward:
        loss = next_token_loss(net(x), x)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    model = Transformer(**words)
    assert predict.forward_flops(model, 3) == forward.get_total_flops()
    both = forward.get_total_flops() + backward.get_total_flops()
    again *= 2 * predict.attention_flops(model, 3) // 2
    assert predict.flops(model, 3) + again == both


def test_flops_are_whole_numbers_and_grow_with_recomputation():
    model = Transformer(2, 32, 4, 50, 16)
    steps = [predict.flops(model, 3, recompute=r) for r in ("none", "selective", "full")]
    assert all(isinstance(f, int) for f in steps) and steps == sorted(steps)
    assert steps[2] - steps[0] == predict.forward_flops(model, 3) - 2 * 3 * 16 * 32 * 50
    assert predict.flops(model, 3) == 3 * predict.forward_flops(model, 3)
    assert math.isclose(predict.attention_flops(model, 1), 4 * 16 * 16 * 32)


def test_bad_input():
    with pytest.raises(ValueError, match="none, selective, full, not 'half'"):
        predict.flops(Transformer(1, 8, 2, 5, 3), 1, recompute="half")
    with pytest.raises(ValueError, match="3 heads do not split hidden = 8"):
        Transformer(1, 8, 3, 5, 3)
    with pytest.raises(ValueError, match="3 heads of keys and values do not serve 2 heads"):
        Transformer(1, 8, 2, 5, 3, kv_heads=3)
    for wrong in (
        dict(layers=0),
        dict(hidden=-8),
        dict(heads=0),
        dict(vocab=0),
        dict(context=-1),
        dict(ffn=0),
    ):
        name, value = next(iter(wrong.items()))
        with pytest.raises(ValueError, match=f"at least 1 of each, and {name} = {value}"):
            Transformer(**dict(layers=1, hidden=8, heads=2, vocab=5, context=3) | wrong)
