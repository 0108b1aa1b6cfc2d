"""The plan: what fits and is fastest, why others lose, what it costs; and how it is printed."""

from dataclasses import replace

import pytest

from minidist.comm.cluster import Cluster
from minidist.study.memory import Transformer, flops
from minidist.study.plan import MODELS, cluster_of, model_of, picture, plan, rivals_table, text
from minidist.study.plan.__main__ import main

SMALL = Transformer(8, 2048, 16, 32000, 1024)


@pytest.fixture(scope="module")
def large():
    return plan("gpt3-175b", "h100:128x8", 1536)


def test_175_billion_on_1024(large):
    best = large.best
    assert best.grid.ranks == large.gpus == 1024
    assert best.grid.data * best.grid.micro_batch * best.grid.micro_batches == 1536
    assert len(large.estimates) > 1000 and not best.over and best.total <= best.capacity
    assert all(one.over or one.step.total >= large.seconds for one in large.estimates)
    assert any(one.over for one in large.estimates)
    assert 0.3 < large.mfu < 0.6
    assert large.mfu == pytest.approx(
        flops(MODELS["gpt3-175b"], 1536) / (large.seconds * 1024 * 989e12)
    )


def test_cost(large):
    cost = large.cost(300 * 10**9, 2.5)
    assert cost.steps == pytest.approx(300e9 / (1536 * 2048))
    assert cost.gpu_hours == pytest.approx(cost.steps * large.seconds * 1024 / 3600)
    assert cost.money == 2.5 * cost.gpu_hours and cost.days == pytest.approx(
        cost.gpu_hours / 1024 / 24
    )
    for tokens, rate in (
        (0, 2),
        (-5, 2),
        (float("nan"), 2),
        (float("inf"), 2),
        (1e9, -1),
        (1e9, float("nan")),
    ):
        with pytest.raises(ValueError, match="at least 1 token at a rate of at least 0, not"):
            large.cost(tokens, rate)


@pytest.mark.parametrize(
    "word", ["h100:1x1", "v100:1x1", "h100:1x3", "v100:1x7", "a100:3x6", "h200:2x5"]
)
def test_odd_numbers_of_devices(word):
    cluster = cluster_of(word)
    found = plan("gpt2-124m", cluster, 6 * cluster.size)
    ways = {one.grid.tensor for one in found.estimates}
    # of 12 heads and 50,257 words
    assert ways == {t for t in (1, 2, 3, 6) if cluster.devices % t == 0}
    assert all(0 < one.step.total < float("inf") for one in found.estimates)


def test_rivals_say_why(large):
    found = {(r.decision, r.value): r for r in large.rivals}
    assert {"tensor", "pipeline", "zero", "recompute", "micro_batch", "interleave"} == {
        d for d, _ in found
    }
    for (decision, value), rival in found.items():
        assert getattr(rival.estimate.grid, decision) == value != getattr(large.best.grid, decision)
        assert rival.why.startswith("too large by" if rival.estimate.over else "slower by")
        fit = [
            one for one in large.estimates if getattr(one.grid, decision) == value and not one.over
        ]
        assert not fit or rival.estimate.step.total == min(one.step.total for one in fit)
    stages = [value for decision, value in found if decision == "pipeline"]
    assert stages == sorted(stages) and 1 in stages


def test_too_large_by_how_much():
    found = plan(MODELS["gpt3-13b"], "a100:1x4", 64)
    why = {(r.decision, r.value): r.why for r in found.rivals}
    assert any(word.startswith("too large by") and "GB: " in word for word in why.values())
    with pytest.raises(ValueError, match=r"nothing fits: .* GB too large for 80"):
        plan("gpt3-175b", "a100:1", 8)


def test_printed(large, capsys):
    words = text(large, 300 * 10**9, 2.0)
    for part in (
        "activations of layers",
        "bubble",
        "GPU-hours",
        "money, at 2 a GPU-hour",
        "MFU",
        "slower by",
    ):
        assert part in words
    assert len(rivals_table(large).rows) == len(large.rivals)
    assert "bubble" in picture(large).text
    assert main(["--model", "gpt2-124m", "--cluster", "h100:1x2", "--batch", "8"]) == 0
    assert "step" in capsys.readouterr().out
    assert main(["--model", "gpt5"]) == 2 and "'gpt5'" in capsys.readouterr().err


def test_one_device():
    found = plan(SMALL, replace(Cluster.dgx_h100(1), devices=1), 4)
    assert found.best.grid.ranks == 1 and found.best.step.bubble == found.best.step.data == 0


def test_names():
    cluster = cluster_of("h100:3x4")
    assert (
        cluster.size == 12
        and cluster_of("a100:2").size == 16
        and model_of("gpt3-175b").layers == 96
    )
    for word in ("h100", "x100:2", "h100:0x8", "h100:2x9", "h100:-1"):
        with pytest.raises(ValueError):
            cluster_of(word)


def test_bad_input():
    with pytest.raises(ValueError, match="at least 1 sequence, not 0"):
        plan(SMALL, "h100:1", 0)
    with pytest.raises(ValueError, match="precision 'fp4' is none of 'fp32', "):
        plan(SMALL, "h100:1", 1, precision="fp4")
    with pytest.raises(ValueError, match="has no device"):
        plan(SMALL, Cluster.uniform(4, 1e-6, 1e-9), 4)
    with pytest.raises(ValueError, match="η is known of"):
        plan(SMALL, Cluster.laptop(4), 4)
