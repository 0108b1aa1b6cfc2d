"""Versions and staleness by formula: as counted in the lists, in runs, and by the meter of memory."""

import functools

import pytest
import torch
from torch import nn

from minidist.comm import Cluster, World
from minidist.parallel.pipedream import most_stale, most_versions, version_bytes
from minidist.parallel.schedules import held, lists, pipedream, pipedream_2bw, staleness
from tests.parallel.pipedream.cases import RULES, made, run

LISTS = {"stash": "newest", "vertical": "first", "2bw": "2bw", "no stash": "newest"}


def of_lists(rule, S, M, m):
    """(most versions, most stale) by stage, counted in the lists."""
    schedule = functools.partial(pipedream_2bw, m=m) if rule == "2bw" else pipedream
    made_lists, name = lists(schedule, S, M), (LISTS[rule], m if rule == "2bw" else None)
    return (
        [max(row) for row in held(made_lists, *name, stash=rule != "no stash")],
        [max(row.values()) for row in staleness(made_lists, *name)],
    )


@pytest.mark.parametrize("S", range(1, 9))
@pytest.mark.parametrize("rule", RULES)
def test_as_counted_in_the_lists(rule, S):
    for M in range(2 * S, 6 * S + 1, S):
        versions, stale = of_lists(rule, S, M, S)
        assert versions == [most_versions(rule, s, S) for s in range(S)]
        assert stale == [most_stale(rule, s, S) for s in range(S)]


@pytest.mark.parametrize("rule", ["stash", "vertical"])
def test_how_long_a_run_must_be(rule):
    S = 6
    for stage in range(S - 2):
        enough = 2 * (S - stage - 1) if rule == "stash" else 2 * (S - 1)
        assert of_lists(rule, S, enough, None)[0][stage] == most_versions(rule, stage, S)
        assert of_lists(rule, S, enough - 1, None)[0][stage] == most_versions(rule, stage, S) - 1


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("S", [1, 2, 3, 5])
def test_as_held_in_a_run(rule, S):
    for stage, (*_, versions, nbytes, of_stage) in enumerate(World(S).run(run, rule, 2 * S, m=S)):
        assert versions == most_versions(rule, stage, S)
        assert nbytes == version_bytes(rule, stage, S, of_stage)


@pytest.mark.parametrize("M", [1, 2, 3, 5])
def test_a_short_run_holds_what_the_lists_say(M):
    for rule in ("stash", "vertical"):
        assert [row[3] for row in World(4).run(run, rule, M)] == of_lists(rule, 4, M, None)[0]


def one_matrix(comm, rule):
    part = nn.Linear(512, 512, bias=False, device=comm.device)
    pipeline = made(comm, rule, lambda p: torch.optim.SGD(p, lr=0.1), part)
    pipeline.run([(torch.empty(2, 512, device=comm.device),) * 2] * 12)
    return pipeline.versions.most


@pytest.mark.parametrize("rule", RULES)
def test_the_meter_of_memory_says_the_same(rule):
    """A World's ledger follows every storage; it knows nothing of versions."""
    world = World(4, cluster=Cluster.dgx_h100(), device="meta")
    world.run(one_matrix, rule)
    for stage in range(4):
        at_peak = world.trace.memory[stage].at_peak
        assert at_peak["parameters"] == version_bytes(rule, stage, 4, 512 * 512 * 4)
        assert at_peak["gradients"] == 512 * 512 * 4


def test_of_equal_stages():
    whole = {rule: sum(most_versions(rule, s, 8) for s in range(8)) for rule in RULES}
    assert whole == {"stash": 36, "vertical": 64, "2bw": 16, "no stash": 8}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("stashing", 0, 2), "stash, vertical, 2bw, no stash, not for 'stashing'"),
        (("stash", 2, 2), "no stage 2"),
    ],
)
def test_bad_arguments(arguments, words):
    for formula in (most_versions, most_stale):
        with pytest.raises(ValueError, match=words):
            formula(*arguments)
