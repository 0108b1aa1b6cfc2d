"""Lesson 03: what the graders reckon with agrees with runs, and the slips that they name are wrong."""

import pytest
import torch

from minicheck import Wrong
from minicheck.exam import Case, Outcome
from minicheck.topology import cost
from minicheck.topology.slow import FindSlow
from minicheck.topology.tree import rounds, shape_of
from minidist.collectives import all_gather, all_reduce_, all_to_all, reduce_scatter
from minidist.comm import World

RIGHT = {"ring": 0.00511, "tree": 9e-5, "crossover": 15.684e6, "across": 246.1e6, "late": 0.401}


def judged(**numbers):
    values, slips = cost.cost_slips(n=512, nodes=64, nbytes=1e9, alpha=5e-6, beta=1 / 50e9, p=0.001)
    outcome = Outcome([RIGHT | numbers], [])
    cost.PredictCost(list(values), values, slips, "").judge(Case(1, ""), [()], outcome)


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({"ring": 0.002555}, "one half"),
        ({"ring": 9e-5}, "the tree"),
        ({"tree": 4.5e-5}, "two trees"),
        ({"tree": 0.0000624}, "base 2"),
        ({"crossover": 14.19e6}, "Nearly"),
        ({"crossover": 3.92e6}, "not numbers"),
        ({"across": 1.96875e9}, "one piece of 8"),
        ({"across": 250e6}, "64 nodes"),
        ({"across": 123e6}, "one half"),
        ({"late": 0.512}, "Two may be late"),
        ({"late": 0.599}, "nobody"),
        ({"late": 0.7}, "too large"),
    ],
)
def test_predicted_numbers(numbers, says):
    judged()
    with pytest.raises(Wrong, match=says):
        judged(**numbers)


def test_all_slips_are_wrong_numbers():
    values, slips = cost.cost_slips(n=512, nodes=64, nbytes=1e9, alpha=5e-6, beta=1 / 50e9, p=0.001)
    assert all(
        abs(slip - values[name]) > 0.01 * values[name]
        for name, some in slips.items()
        for slip in some
    )


def test_the_crossover_is_where_a_world_says():
    values, _ = cost.cost_slips(n=16, nodes=4, nbytes=1e6, alpha=5e-6, beta=1 / 50e9, p=0.1)
    for factor, faster in ((0.9, "tree"), (1.1, "ring")):
        times = {
            name: cost.clock(name, 16, 16 * int(values["crossover"] * factor / 16), 5e-6, 1 / 50e9)
            for name in ("ring", "tree")
        }
        assert min(times, key=times.get) == faster
    assert values["ring"] == pytest.approx(cost.clock("ring", 16, 16, 5e-6, 0.0))
    assert values["tree"] == pytest.approx(cost.clock("tree", 16, 16, 5e-6, 0.0))


@pytest.mark.parametrize("n", [2, 3, 8])
def test_the_factors_are_what_a_ring_sends(n):
    def busiest(verb, x):
        world = World(n, device="meta")
        world.run(verb, x)
        return max(world.trace.bytes_sent(r) for r in range(n))

    whole, part = torch.empty(n * n, device="meta"), torch.empty(n, device="meta")
    sent = {
        "all_reduce": busiest(all_reduce_, whole),
        "reduce_scatter": busiest(reduce_scatter, whole),
        "all_gather": busiest(all_gather, part),
        "all_to_all": busiest(all_to_all, whole),
    }
    for verb, nbytes in sent.items():
        assert cost.FACTORS[verb](n) == pytest.approx(nbytes / whole.nbytes)


@pytest.mark.parametrize(
    ("got", "says"),
    [
        (None, "return"),
        ((2e9,), "two numbers"),
        (2e9, "two numbers"),
        ((2.0, 3.5), "should be N over seconds"),
        ((3.5e9, 3.5e9), "the other of the two"),
        ((2e9, 2e9), "Nearly"),
        ((2e9, 1.75e9), "one half"),
        ((2e9, 9e9), "must"),
        ((2e9, float("nan")), "finite number"),
        ((2e9, True), "of type bool"),
        ((2e9, 2e9 / 1.75), "the other way up"),
    ],
)
def test_wrong_bandwidths(got, says):
    exam, args = cost.Bandwidth(), [("all_reduce", 8, 10**9, 0.5)]
    exam.judge(Case(1, ""), args, Outcome([(2e9, 3.5e9)], []))
    with pytest.raises(Wrong, match=says):
        exam.judge(Case(1, ""), args, Outcome([got], []))


def test_rounds_and_shapes():
    star = Outcome([], [(0, r, 8) for r in (1, 2, 3)], 24.0)
    assert rounds(star, 8) == 3 and rounds(star, 0) is None and rounds(Outcome([], []), 8) is None
    assert "all the work" in shape_of(star, 4, 0)
    assert "a chain" in shape_of(Outcome([], [(0, 1, 8), (1, 2, 8), (2, 3, 8)]), 4, 0)


@pytest.mark.parametrize(
    ("got", "says"),
    [
        (None, "None"),
        (True, "an int"),
        (9, "there is no rank 9"),
        (-1, "there is no"),
        (2.0, "of type float"),
    ],
)
def test_what_is_no_rank(got, says):
    exam = FindSlow()
    args = exam.draw(Case(1, "", (5, "all-reduce")), torch.Generator().manual_seed(0))
    exam.judge(Case(1, ""), args, Outcome([exam.slow], []))
    for wrong in set(range(5)) - {exam.slow}:
        with pytest.raises(Wrong, match=f"rank {wrong} is not slow, rank {exam.slow} is"):
            exam.judge(Case(1, ""), args, Outcome([wrong], []))
    with pytest.raises(Wrong, match=says):
        exam.judge(Case(1, ""), args, Outcome([got], []))
