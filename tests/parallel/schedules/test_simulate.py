"""The simulator against the longest path through what must come after what, written down a second time."""

import functools
import random

import pytest

from minidist.parallel import schedules
from minidist.parallel.schedules import (
    Action,
    Simulation,
    Span,
    gpipe,
    interleaved,
    lists,
    parse,
    simulate,
)

EVERY = ["naive", "gpipe", "one_f_one_b", "zb_h1", "zb_h2", "interleaved", "pipedream"]


def longest(actions, v, cost, comm):
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
        return start + cost[kind][stage][chunk]

    return [[end(s, i) for i in range(len(row))] for s, row in enumerate(actions)]


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(("S", "M"), [(1, 3), (2, 4), (3, 6), (4, 8), (5, 5)])
def test_as_the_longest_path(name, S, M):
    draw = random.Random(S * 100 + M)
    actions, v = lists(getattr(schedules, name), S, M), 2 if name == "interleaved" else 1
    for comm in (0.0, 0.7):
        cost = {
            kind: [[draw.uniform(0.5, 2) for _ in range(v)] for _ in range(S)] for kind in "FBIWU"
        }
        run = simulate(actions, cost["F"], cost["B"], cost["I"], cost["W"], comm, cost["U"])
        ends = [[span.end for span in row] for row in run.spans]
        for got, want in zip(ends, longest(actions, v, cost, comm)):
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


def test_times_of_stages_and_chunks():
    slow = simulate(lists(gpipe, 2, 4), forward=[1, 3])
    assert slow.spans[1][3].end == 1 + 4 * 3
    chunks = simulate(lists(interleaved, 2, 2), forward=[[1, 5], [2, 1]], comm=1)
    assert [chunks.spans[1][i].end for i in range(3)] == [4, 6, 12]
    with pytest.raises(ValueError, match="3 forward times were given for 2 stages"):
        simulate(lists(gpipe, 2, 4), forward=[1, 2, 3])
    with pytest.raises(ValueError, match="1 weight times were given for the 2 chunks of stage 0"):
        simulate(lists(interleaved, 2, 2), weight=[[1], [1]])
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
    run = simulate(stuck, partly=True)
    assert isinstance(run, Simulation) and [len(row) for row in run.spans] == [1, 1]
    assert run.stuck == [Action("B", 0), Action("F", 1)]


def test_no_lists():
    with pytest.raises(ValueError, match="2 lists without an action"):
        simulate([[], []])
