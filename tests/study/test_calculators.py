"""The two calculators show what `predict` and `plan` say."""

import pytest

from minidist.study import memory_calculator, planner_table
from minidist.study.catalog import MODELS
from minidist.study.plan import plan
from minidist.study.predict import Grid, per_rank


def test_memory_is_that_of_predict():
    names = ["gpt2-1.5b", "gpt3-175b"]
    chosen = dict(model="gpt3-175b", data=8, tensor=8, pipeline=16, zero=1, recompute="full")
    made = memory_calculator(names, data=[1, 8], start=chosen, micro_batches=32)
    checked = 0
    for zero in range(4):
        for tensor in (1, 8):
            grid = Grid(8, tensor, 16, zero=zero, recompute="full", micro_batches=32)
            rank = per_rank(MODELS["gpt3-175b"], grid)
            shown = made.at(zero=zero, tensor=tensor)
            assert sum(shown.values()) == rank.total
            assert shown["optimizer states"] == rank.optimizer_states
            assert shown["gradients"] == rank.gradients
            checked += 1
    assert checked == 8
    # 25 heads are not divided by 8
    assert made.at(model="gpt2-1.5b") is None
    assert "heads" in made.why[made.index([0, 1, 3, 4, 1, 2])]


def test_the_planner_is_that_of_plan():
    made = planner_table(
        ["gpt2-1.5b", "gpt3-6.7b"], nodes=[1], batches=[64], start={"model": "gpt2-1.5b"}
    )
    best = plan("gpt2-1.5b", "h100:1x8", 64)
    shown = made.at()
    assert sum(shown[name] for name in made.drawn) == pytest.approx(best.seconds)
    grid = best.best.grid
    assert shown["data · tensor · stages"] == f"{grid.data} · {grid.tensor} · {grid.pipeline}"
    assert (shown["ZeRO"], shown["recomputed"]) == (grid.zero, grid.recompute)
    assert shown["memory of a rank"] == best.best.total
    assert shown["MFU"] == pytest.approx(100 * best.mfu)


def test_what_does_not_fit_is_said():
    made = planner_table(
        ["gpt2-1.5b", "gpt3-175b"], nodes=[1], batches=[8], start={"model": "gpt2-1.5b"}
    )
    assert made.at(model="gpt3-175b") is None
    assert made.why[1].startswith("nothing fits: the leanest grid")
