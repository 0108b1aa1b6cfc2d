"""The clock of schedules: simulated, drawn as text, and searched."""

import functools
import itertools
import random
from functools import partial

import pytest

from minidist.parallel import schedules
from minidist.parallel.schedules import (
    Action,
    activations_kept,
    gpipe,
    in_flight,
    interleaved,
    lists,
    one_f_one_b,
    parse,
    zb_h1,
    zb_h2,
    zb_v,
)
from minidist.parallel.simulate import Span, grid, search, simulate, zb_auto
from minidist.parallel.validate import validate

# ------------------------------------------------------------
# The simulator against the longest path through what must come after what, written down a second time.


EVERY = ["naive", "gpipe", "one_f_one_b", "zb_h1", "zb_h2", "interleaved", "pipedream"]


def longest(actions, cost, comm):
    """When each action ends: after the one before it, and after those that it needs, by part of the model."""
    S = len(actions)
    where = {
        (a.kind, a.micro, a.chunk * S + s): (s, i)
        for s, row in enumerate(actions)
        for i, a in enumerate(row)
    }
    needs = {
        "F": [("F", -1)],
        "B": [("F", 0), ("B", 1), ("I", 1)],
        "I": [("F", 0), ("B", 1), ("I", 1)],
        "W": [("I", 0)],
        "U": [],
    }

    @functools.cache
    def end(stage, i):
        kind, micro, chunk = actions[stage][i]
        start = end(stage, i - 1) if i else 0.0
        for other, step in needs[kind]:
            place = where.get((other, micro, chunk * S + stage + step))
            if place:
                start = max(start, end(*place) + comm * (place[0] != stage))
        return start + cost[kind][stage]

    return [[end(s, i) for i in range(len(row))] for s, row in enumerate(actions)]


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(("S", "M"), [(1, 3), (2, 4), (3, 6), (4, 8), (5, 5)])
def test_as_the_longest_path(name, S, M):
    draw = random.Random(S * 100 + M)
    actions = lists(getattr(schedules, name), S, M)
    for comm in (0.0, 0.7):
        cost = {kind: [draw.uniform(0.5, 2) for _ in range(S)] for kind in "FBIWU"}
        run = simulate(actions, cost["F"], cost["B"], cost["I"], cost["W"], comm, cost["U"])
        ends = [[span.end for span in row] for row in run.spans]
        for got, want in zip(ends, longest(actions, cost, comm)):
            assert got == pytest.approx(want)
        assert [[span.action for span in row] for row in run.spans] == actions


def test_by_hand():
    """1F1B with two stages, a backward twice as long as a forward, a message half a forward."""
    run = simulate(lists(schedules.one_f_one_b, 2, 2), comm=0.5)
    assert run.spans[0] == [
        Span(0, Action("F", 0), 0, 1),
        Span(0, Action("F", 1), 1, 2),
        Span(0, Action("B", 0), 5, 7),
        Span(0, Action("B", 1), 8, 10),
    ]
    assert [(s.start, s.end) for s in run.spans[1]] == [
        (1.5, 2.5),
        (2.5, 4.5),
        (4.5, 5.5),
        (5.5, 7.5),
    ]
    assert run.time == run.cost == 10 and run.busy == [6, 6] and run.bubble == pytest.approx(0.4)


def test_the_bubble_is_that_of_all_stages():
    """One micro-batch, one stage after the other: of 2 · 8 seconds 3 and 5 are busy."""
    run = simulate(lists(schedules.naive, 2, 1), forward=[1, 3])
    assert run.time == 8 and run.busy == [3, 5]
    assert run.bubble == run.bubble_rate == pytest.approx(0.5)


def test_cost_is_that_of_the_longest_stage():
    """ZB-H2: each stage is busy from its first action to its last, and the last begins S − 1 forwards later."""
    run = simulate(lists(schedules.zb_h2, 4, 8))
    assert (
        run.cost == 24
        and run.time == 27
        and run.bubble_rate == 0
        and run.bubble == pytest.approx(3 / 27)
    )


def test_times_of_stages():
    slow = simulate(lists(gpipe, 2, 4), forward=[1, 3])
    assert slow.spans[1][3].end == 1 + 4 * 3
    with pytest.raises(ValueError, match="3 forward times were given for 2 stages"):
        simulate(lists(gpipe, 2, 4), forward=[1, 2, 3])
    with pytest.raises(ValueError, match="stage 1 was given -1"):
        simulate(lists(gpipe, 2, 4), input=[1, -1])


def test_who_does_not_wait():
    """Without waiting for messages every stage is busy all the time."""
    run = simulate(lists(gpipe, 3, 2), comm=5, waits=lambda stage, action: False)
    assert run.time == 6 and run.bubble == 0


def test_lists_that_hang():
    stuck = [parse("F0 B0 F1 B1"), parse("F0 F1 B0 B1")]
    with pytest.raises(ValueError, match="stage 0 never comes to B0, its action 1 of 4"):
        simulate(stuck)


def test_no_lists():
    with pytest.raises(ValueError, match="2 lists without an action"):
        simulate([[], []])


# ------------------------------------------------------------
# The printed grid.


def test_1f1b():
    assert grid(lists(one_f_one_b, 2, 3)) == (
        "stage 0  F0 F1 .  .  B0 ── F2 B1 ── .  B2 ──\nstage 1  .  F0 B0 ── F1 B1 ── F2 B2 ── .  ."
    )


def test_zero_bubble():
    assert grid(lists(zb_h1, 2, 3)) == (
        "stage 0  F0 F1 .  I0 W0 F2 I1 W1 I2 W2\nstage 1  .  F0 I0 F1 I1 W0 F2 I2 W1 W2"
    )


def test_chunks_and_many_micro_batches_stay_in_columns():
    rows = grid(lists(interleaved, 2, 2)).splitlines()
    assert rows[0].startswith(
        "stage 0  F0   F1   F0.1 F1.1 .    .    B0.1 ──── .    B1.1 ──── B0   ────"
    )
    wide = grid(lists(one_f_one_b, 1, 12))
    assert wide.startswith("stage 0  F0  B0  ─── F1 ") and wide.endswith("F11 B11 ───")


def test_a_v():
    rows = grid(lists(zb_v, 2, 3), place="V").splitlines()
    assert rows[1].startswith("stage 1  .    F0   F0.1 F1   F1.1 I0.1 W0.1")


# ------------------------------------------------------------
# The searched zero-bubble schedule: always one, within its memory, and no worse than those by hand.


TIMES = [(1.0, 1.0, 1.0, 0.0), (10.0, 9.0, 5.0, 0.3), (1.0, 2.0, 1.5, 0.1), (3.0, 1.0, 0.5, 1.0)]


@pytest.mark.parametrize("limit", [1, 2.5, 4, 100])
def test_it_is_a_schedule_within_its_memory(limit):
    for S, M in itertools.product((1, 2, 3, 5, 8), (1, 2, 3, 7, 16)):
        for times, rest in zip(TIMES, (1, 0.5, 0, 0.9)):
            found = search(S, M, *times, limit, rest)
            validate(found, S, M)
            assert all(
                row < limit + 1e-6 for actions in found for row in activations_kept(actions, rest)
            )


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
    validate(actions, 3, 8)
    assert all(in_flight(each) <= 6 for each in actions)
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
