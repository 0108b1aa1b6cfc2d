"""The searched zero-bubble schedule: always one, within its memory, and no worse than those by hand."""

import itertools
from functools import partial

import pytest

from minidist.parallel.schedules import lists, search, simulate, validate, zb_auto, zb_h1, zb_h2

TIMES = [(1.0, 1.0, 1.0, 0.0), (10.0, 9.0, 5.0, 0.3), (1.0, 2.0, 1.5, 0.1), (3.0, 1.0, 0.5, 1.0)]


@pytest.mark.parametrize("limit", [1, 2.5, 4, 100])
def test_it_is_a_schedule_within_its_memory(limit):
    for S, M in itertools.product((1, 2, 3, 5, 8), (1, 2, 3, 7, 16)):
        for times, rest in zip(TIMES, (1, 0.5, 0, 0.9)):
            validate(search(S, M, *times, limit, rest), S, M, limit=limit, rest=rest)


@pytest.mark.parametrize(("hand", "limit"), [(zb_h1, lambda S: S), (zb_h2, lambda S: 2 * S - 1)])
def test_no_worse_than_by_hand(hand, limit):
    for S, M in itertools.product((2, 3, 4, 8), (8, 12, 16)):
        for forward, input, weight, comm in TIMES[:2]:
            times = dict(forward=forward, input=input, weight=weight, comm=comm)
            by_hand = simulate(lists(hand, S, M), **times).cost
            assert simulate(search(S, M, **times, limit=limit(S)), **times).cost <= by_hand + 1e-9


def test_more_memory_less_bubble():
    times = dict(forward=1, input=1, weight=0.9, comm=0.05)
    rates = [
        simulate(search(8, 24, **times, limit=limit), **times).bubble_rate
        for limit in (4, 8, 12, 16)
    ]
    assert rates == sorted(rates, reverse=True) and rates[-1] < 0.05 < 0.3 < rates[0]


def test_nearly_no_bubble_at_measured_times():
    """The 1.5B model on 8 stages of Qi et al. 2023: 0.39 % with memory for 2p micro-batches."""
    times = dict(forward=18.513, input=18.086, weight=9.331, comm=0.626)
    actions = search(8, 32, **times, limit=16, rest=32 * 2304 / (34 * 2304 + 5 * 24 * 1024))
    assert simulate(actions, **times).bubble_rate < 0.004


def test_the_time_of_messages_counts():
    times = dict(forward=10, input=10, weight=9)
    known, unknown = (
        simulate(search(4, 12, **times, comm=comm), **times, comm=2).cost for comm in (2, 0)
    )
    assert known < unknown


def test_each_stage_finds_the_same():
    schedule = partial(zb_auto, forward=2, input=3, weight=1, comm=0.5)
    assert lists(schedule, 4, 6) == search(4, 6, 2, 3, 1, 0.5)


def test_stages_of_different_speed():
    uneven = dict(forward=[1, 2, 1], input=[1, 2, 1], weight=[1, 2, 1])
    actions = search(3, 8, **uneven)
    validate(actions, 3, 8, limit=6)
    assert simulate(actions, **uneven).cost == 8 * 6  # the slowest stage never waits


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (dict(limit=0.5), "at least 1 micro-batch, not 0.5"),
        (dict(rest=1.5), "not 1.5"),
    ],
)
def test_bad_arguments(arguments, words):
    with pytest.raises(ValueError, match=words):
        search(2, 4, **arguments)
    with pytest.raises(ValueError, match="no stage 2"):
        zb_auto(2, 2, 4)
