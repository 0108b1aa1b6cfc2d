"""Versions of the weights: which are used, which are held, and how stale a gradient is."""

import itertools
from functools import partial

import pytest

from minidist.parallel.schedules import (
    forward_versions,
    gpipe,
    held,
    lists,
    parse,
    pipedream,
    pipedream_2bw,
    staleness,
)

SIZES = list(itertools.product(range(1, 9), range(1, 17)))


def test_by_hand():
    """Two stages: the first has two micro-batches on the way, so its second forward still used version 0."""
    actions = lists(pipedream, 2, 4)
    assert forward_versions(actions) == [{0: 0, 1: 0, 2: 1, 3: 2}, {0: 0, 1: 1, 2: 2, 3: 3}]
    assert forward_versions(actions, "first") == [{0: 0, 1: 0, 2: 1, 3: 2}] * 2
    # F0 F1 B0 U0 F2 B1 U1 F3 B2 U2 B3 U3
    assert held(actions)[0] == [1, 1, 1, 2, 2, 1, 2, 2, 1, 2, 1, 1]
    assert staleness(actions) == [{0: 0, 1: 1, 2: 1, 3: 1}, {0: 0, 1: 0, 2: 0, 3: 0}]


def test_staleness_of_pipedream():
    """S − 1 − stage once the pipeline is full; with vertical sync S − 1 on every stage."""
    for S, M in SIZES:
        both = (staleness(lists(pipedream, S, M), rule) for rule in ("newest", "first"))
        for stage, (own, synced) in enumerate(zip(*both)):
            assert own == {m: min(m, S - 1 - stage) for m in range(M)}
            assert synced == {m: min(m, S - 1) for m in range(M)}


def test_versions_held():
    for S, M in SIZES:
        actions = lists(pipedream, S, M)
        assert all(max(row) == 1 for row in held(actions, stash=False))
        # enough for a stage to have S − 1 micro-batches on the way that all met other weights
        if M >= 2 * S - 2:
            assert [max(row) for row in held(actions)] == [S - stage for stage in range(S)]
            assert [max(row) for row in held(actions, "first")] == [S] * S


@pytest.mark.parametrize("m", [4, 5, 8])
def test_2bw(m):
    """One update behind after the first group, on every stage, and the same version on every stage."""
    actions = lists(partial(pipedream_2bw, m=m), 4, 5 * m)
    for used, stale in zip(*(f(actions, "2bw", m) for f in (forward_versions, staleness))):
        assert used == {i: max(0, i // m - 1) for i in range(5 * m)}
        assert stale == {i: int(i >= m) for i in range(5 * m)}
    assert [max(row) for row in held(actions, "2bw", m)] == [2] * 4


def test_without_updates_there_is_one_version():
    actions = lists(gpipe, 2, 3)
    assert staleness(actions) == [{0: 0, 1: 0, 2: 0}] * 2 and held(actions) == [[1] * 6] * 2


def test_split_backwards():
    assert staleness([parse("F0 I0 F1 I1 W0 U0 W1 U1")]) == [{0: 0, 1: 1}]
    assert held([parse("F0 I0 F1 I1 W0 U0 W1 U1")]) == [[1, 1, 1, 1, 1, 2, 1, 1]]
