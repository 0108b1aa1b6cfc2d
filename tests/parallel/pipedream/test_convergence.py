"""Without stashing training fails where with it it works: by more than five seeds differ."""

import math

import pytest
import torch

from benchmarks.pipedream import SEEDS, Layer, batches, converge
from minidist.tasks import digits


def test_no_stash_is_worse_by_more_than_the_spread_of_seeds():
    """Small: with stashing all five learn, without most diverge, whose loss counts as infinite."""
    outcomes = [converge(rule, 0.1, 200) for rule in ("stash", "no stash")]
    stash, without = (outcome.losses[-40:].mean(0).nan_to_num(math.inf) for outcome in outcomes)
    assert len(stash) == 5 and stash.max() < math.log(10)
    assert without.median() - stash.median() > stash.max() - stash.min()


@pytest.mark.parametrize("rule", ["flush", "vertical", "2bw"])
def test_the_others_learn(rule):
    """At a small rate the loss falls, for every seed."""
    outcome = converge(rule, 0.02, 64)
    assert outcome.losses.shape == (64, 5)
    assert (outcome.losses[-16:].mean(0) < outcome.losses[:16].mean(0) - 0.05).all()


def test_the_seeds_are_models_of_their_own():
    """Five side by side are five alone: the same start, batches and outcome."""
    together, alone = converge("stash", 0.05, 16, 2), converge("stash", 0.05, 16, 2, SEEDS[3:4])
    assert abs(together.loss[3] - alone.loss[0]) < 1e-4 and len(set(together.loss)) == 5
    task = digits(torch.float32)
    assert torch.equal(batches(task, 2, SEEDS)[1][0][3], batches(task, 2, SEEDS[3:4])[1][0][0])
    assert torch.equal(Layer(2, SEEDS).weight[3], Layer(2, SEEDS[3:4]).weight[0])
