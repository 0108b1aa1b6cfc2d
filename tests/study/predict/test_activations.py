"""The paper's activations: Table 2 in all its variants, percentages, pipelines."""

import re
from dataclasses import replace
from fractions import Fraction

import pytest

from minidist.study import predict, published
from minidist.study.predict import GB, Transformer, flops
from tests.study.predict.kept import published_hardware_flops

MT_NLG = Transformer(105, 20480, 128, 51200, 2048)
GPT3 = Transformer(96, 12288, 96, 51200, 2048)
GPT2 = Transformer(48, 1600, 25, 50257, 1024)


def said(**words):
    rows = [
        r for r in published("activation_recomputation") if all(r[k] == v for k, v in words.items())
    ]
    assert len(rows) == 1, words
    return rows[0]["value"]


@pytest.mark.parametrize("model", [MT_NLG, GPT3, Transformer(2, 64, 8, 100, 32)])
@pytest.mark.parametrize("t", [1, 2, 8])
@pytest.mark.parametrize("b", [1, 4])
def test_table_2_of_activation_recomputation(model, t, b):
    """Each formula as the table prints it, evaluated exactly."""
    words = {
        "no parallelism": dict(tensor=1),
        "tensor parallel": dict(tensor=t),
        "TP + sequence parallel": dict(tensor=t, sequence=True),
        "TP + selective recompute": dict(tensor=t, recompute="selective"),
        "TP+SP + selective recompute": dict(tensor=t, sequence=True, recompute="selective"),
        "full recompute": dict(tensor=t, recompute="full"),
    }
    letters = dict(s=model.context, b=b, h=model.hidden, a=model.heads, t=t)
    letters = {name: Fraction(number) for name, number in letters.items()}
    for method, grid in words.items():
        formula = said(table_or_figure="Table 2", method=method)
        products = re.sub(r"(?<=[\w)])(?=[a-z(])", "*", formula)  # sbh(34) is s*b*h*(34)
        ours = predict.activations(model, b, **grid)
        assert isinstance(ours, int) and ours == eval(products, {}, letters), (method, products)


def test_claims_about_mt_nlg():
    """65 % less kept for 1.6 % more FLOPs; five times less with sequence parallelism."""
    saved = 100 * predict.selective_saving(MT_NLG)
    assert saved == pytest.approx(65.3, abs=0.05) and int(saved) == said(
        quantity="selective_saves_activation"
    )
    more = 100 * (published_hardware_flops(MT_NLG, 1) / flops(MT_NLG, 1) - 1)
    assert round(more, 1) == said(quantity="selective_flops_overhead")
    exact = 100 * (flops(MT_NLG, 1, recompute="selective") / flops(MT_NLG, 1) - 1)
    # as the formula of that paper counts, not as one forward
    assert exact == pytest.approx(more / 3, rel=1e-9)
    parallel, both = (
        predict.activations(MT_NLG, 1, tensor=8, **grid)
        for grid in (dict(), dict(sequence=True, recompute="selective"))
    )
    assert parallel / both == pytest.approx(said(quantity="activation_memory_reduction"), abs=0.5)


def test_full_recomputation_split_over_tensor_parallel_ranks():
    assert (
        predict.activations(GPT3, 1, tensor=8, sequence=True, recompute="full")
        == 2 * 2048 * 12288 // 8
    )


def test_ends():
    s = 2048
    h = 20480
    V = 51200
    t = 8
    p = 35
    assert predict.embedding_activations(MT_NLG, 3, tensor=t, micro_batches=p) == s * 3 * h * p // t
    assert (
        predict.output_activations(MT_NLG, 3, tensor=t, along=t)
        == 4 * s * 3 * h * (h + V) // h // t
    )
    assert predict.logits(1000, 50, tensor=5) == 40_000
    assert predict.logits(1, 64000 * 5120) == 1_310_720_000
    # the first part has 17 of the vocabulary, the others less
    assert predict.logits(10, 50, tensor=3) == 10 * 17 * 4


def test_activations_of_zero():
    """GPT-2 1.5B, batch 32, 1,024 tokens: about 60 GB; recomputed, and of 100 B parameters. 33 GB are elements."""
    text = {r["quantity"]: r["value"] for r in published("zero") if r["table_or_figure"] == "text"}
    assert predict.rough(GPT2, 32) / GB == pytest.approx(
        text["gpt2_1.5B_activation_s1024_b32"], rel=0.01
    )
    large = Transformer(125, 8192, 64, 50257, 1024)
    inputs = large.layers * predict.activations(large, 32, recompute="full")
    assert inputs == 67_108_864_000
    assert inputs / GB == pytest.approx(text["100B_activation_with_checkpointing_b32"], rel=0.12)
    elements = inputs // 2
    assert elements / GB == pytest.approx(text["100B_b32_s1024_MP16_checkpoint_per_gpu"], rel=0.02)
    assert elements // 16 / GB == pytest.approx(text["100B_b32_s1024_MP16_checkpoint_Pa"], rel=0.05)
    # "about 8 GB" is between the layers' inputs alone and these with one whole layer of the later paper.
    alone = GPT2.layers * predict.activations(GPT2, 32, recompute="full")
    assert (
        alone / GB
        < text["gpt2_1.5B_activation_with_checkpointing"]
        < (alone + predict.activations(GPT2, 32)) / GB
    )


def test_llama():
    """sbh(16 + 8·ffn/h) + 2as²b, with 13824 / 5120: 37.6."""
    llama = Transformer(
        40, 5120, 40, 32000, 2048, tied=False, ffn=13824, gated=True, bias=False, positions=False
    )
    x = 1024 * 5120
    assert (
        predict.activations(replace(llama, context=1024), 1, dropout=False)
        == Fraction("37.6") * x + 2 * 40 * 1024**2
    )
    fused = predict.activations(replace(llama, context=1024), 3, dropout=False, attention="fused")
    assert fused == 3 * (Fraction("37.6") * x + 4 * 40 * 1024)
    narrow = Transformer(80, 8192, 64, 32000, 4096, ffn=28672, gated=True, kv_heads=8)
    kept = predict.activations(narrow, 1, dropout=False, recompute="selective")
    assert kept == 4096 * (8192 * 12 + 4 * 1024 + 8 * 28672)


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 35])
@pytest.mark.parametrize("v", [1, 2, 3])
def test_first_stage_of_a_pipeline(stages, v):
    """1F1B: L layers' worth. Interleaved: L(1 + (p − 1)/(p m))."""
    L, M = stages * v * 2, 4 * stages
    chunks = predict.in_flight(stages, M, interleave=v)
    worth = chunks * Fraction(L, stages * v)
    assert worth == (L if v == 1 else L * (1 + Fraction(stages - 1, stages * v)))


def run(stage, S, M, v):
    """Forwards (+1) and backwards (−1) of a stage with their chunk, in Megatron-LM's order of 1F1B."""
    total = M * v
    warmup = min(total, (S - stage - 1) * 2 + (v - 1) * S if v > 1 else S - stage - 1)
    chunk = lambda k: k % (S * v) // S
    forward, backward = iter(range(total)), iter(range(total))
    for _ in range(warmup):
        yield 1, chunk(next(forward))
    for _ in range(total - warmup):
        yield 1, chunk(next(forward))
        yield -1, v - 1 - chunk(next(backward))
    for k in backward:
        yield -1, v - 1 - chunk(k)


@pytest.mark.parametrize(
    ("S", "M", "v"),
    [
        (1, 3, 1),
        (4, 2, 1),
        (4, 12, 1),
        (2, 4, 2),
        (4, 8, 3),
        (4, 4, 2),
        (3, 9, 4),
    ],
)
def test_in_flight_as_a_schedule_has_it(S, M, v):
    for stage in range(S):
        alive = 0
        first = 0
        most = 0
        most_first = 0
        for change, chunk in run(stage, S, M, v):
            alive, first = alive + change, first + change * (chunk == 0)
            most, most_first = max(most, alive), max(most_first, first)
        assert most == predict.in_flight(S, M, stage, interleave=v)
        if stage == 0 and v > 1:
            assert most_first == min(M, 2 * S)


def test_each_stage_keeps_a_micro_batch_for_every_stage_that_follows():
    assert [predict.in_flight(4, 9, s) for s in range(4)] == [4, 3, 2, 1]


def test_bad_input():
    for wrong, words in (
        (dict(recompute="some"), "none, selective, full, not 'some'"),
        (dict(tensor=3), "8 heads do not split over 3"),
        (dict(tensor=8, sequence=True), "12 tokens do not split over 8"),
        (dict(attention="flash"), "explicit, fused, not 'flash'"),
        (dict(attention="fused", recompute="selective"), "there recompute is none or full"),
    ):
        with pytest.raises(ValueError, match=words):
            predict.activations(Transformer(2, 64, 8, 100, 12), 1, **wrong)
    with pytest.raises(ValueError, match="no stage 4 among 4"):
        predict.in_flight(4, 8, 4)
