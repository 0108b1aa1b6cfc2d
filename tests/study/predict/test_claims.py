"""Sums from the literature, each one done again by the calculators: which hold, and in which unit."""

from dataclasses import replace

from minidist.study import published
from minidist.study.predict import (
    GB,
    MB,
    GiB,
    MiB,
    Transformer,
    activations,
    largest,
    logits,
    parameters,
    states,
)

# The sums treat LLaMA-13B as a GPT with its width, as the write-ups do.
AS_GPT = Transformer(40, 5120, 40, 32000, 1024)
LLAMA = Transformer(
    40, 5120, 40, 32000, 2048, tied=False, ffn=13824, gated=True, bias=False, positions=False
)


def test_every_sum():
    claims = {row["quantity"]: row["value"] for row in published("claims_checked")}
    layer = activations(AS_GPT, 1)
    kept, model = 40 * layer, states(13 * 10**9).total
    exact = states(parameters(LLAMA)).total
    sums = {
        "bracket 34+5as/h": layer // (1024 * 5120),
        "activation per layer": layer,
        "activation 40 layers": kept,
        "model states 13e9*16": model // GB,
        "claimed total": 222.5,
        "right total decimal": round((model + kept) / GB, 2),
        "right total binary": round((model + kept) / GiB, 2),
        "right total with exact 13,015,864,320 params": round((exact + kept) / GB, 2),
        "cookbook cross-check activation": round(kept / GiB, 3),
        "caveat": "GPT block formula",
        "32e9/16": largest(32 * GB),
        "100e6*12": states(100 * 10**6, "momentum", "fp32").total / GB,
        "170e9*16": states(170 * 10**9).total // GB,
        "64000*5120*4": logits(64000, 5120),
    }
    assert sums == claims
    assert kept == 40 * 387_973_120 == 15_518_924_800  # the row is consistent with its own formula

    # What the notes say of them.
    assert (
        layer == 370 * MiB
        and round(layer / GiB, 6) == 0.361328
        and round(layer / GB, 6) == 0.387973
    )
    assert (
        kept / GiB == 14.453125 and round(kept / GB, 4) == 15.5189 and round(kept / GiB, 1) == 14.5
    )
    assert claims["claimed total"] == model / GB + round(kept / GiB, 1)  # GB and GiB added up
    assert round(model / GiB, 3) == 193.715 and round((exact + kept) / GiB, 2) == 208.40
    assert parameters(LLAMA) == 13_015_864_320
    assert round(40 * activations(replace(LLAMA, context=1024), 1, dropout=False) / GiB, 1) == 10.5
    assert round(largest(32 * GiB) / GB, 3) == 2.147
    assert round(states(100 * 10**6, "momentum", "fp32").total / GiB, 3) == 1.118
    assert states(100 * 10**6, "sgd", "fp32").total == 0.8 * GB
    assert round(states(111 * 10**6, "momentum", "fp32").total / GB, 2) == 1.33
    assert round(states(170 * 10**9).total / GiB, 1) == 2533.2
    assert states(175 * 10**9).total == 2800 * GB and states(174_600_000_000).total / GB == 2793.6
    assert logits(64000, 5120) == 1250 * MiB and logits(64000, 5120) / MB == 1310.72
