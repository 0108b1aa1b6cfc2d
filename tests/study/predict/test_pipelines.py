"""Bubble and activations kept: the papers' formulas, against lists that were simulated and counted."""

import itertools
from functools import partial

import pytest

from minidist.parallel import schedules
from minidist.parallel.schedules import in_flight, interleaved, lists
from minidist.parallel.simulate import simulate
from minidist.study.predict import bubble, most_kept

SIZES = list(itertools.product(range(1, 9), range(1, 17)))
TIMES = [(1, 1, 1), (2, 3, 1), (1, 1.5, 0.5), (3, 1, 2), (3, 1, 0.5)]
FEWEST = {
    "naive": lambda S: 1,
    "gpipe": lambda S: S,
    "one_f_one_b": lambda S: S,
    "zb_h1": lambda S: S,
    "zb_h2": lambda S: 2 * S - 1,
}


@pytest.mark.parametrize("name", FEWEST)
def test_as_the_formulas_say(name):
    for S, M in SIZES:
        if FEWEST[name](S) > M:
            continue
        actions = lists(getattr(schedules, name), S, M)
        assert [in_flight(row) for row in actions] == [
            most_kept(name, stage, S, M) for stage in range(S)
        ]
        for forward, input, weight in TIMES:
            run = simulate(actions, forward=forward, input=input, weight=weight)
            assert run.bubble_rate == pytest.approx(
                bubble(name, S, M, 1, forward, input, weight), abs=1e-12
            )
            if not name.startswith("zb"):  # whose stages end one after the other
                assert run.bubble == pytest.approx(run.bubble_rate)


@pytest.mark.parametrize("v", [1, 2, 3, 4])
def test_interleaved(v):
    for S, M in SIZES:
        if M % S:
            continue
        actions = lists(partial(interleaved, v=v), S, M)
        kept = [most_kept("interleaved", stage, S, M, v) for stage in range(S)]
        assert [in_flight(row) for row in actions] == kept
        for forward, input, weight in TIMES:
            run = simulate(actions, forward=forward, input=input, weight=weight)
            assert run.bubble == pytest.approx(bubble("interleaved", S, M, v), abs=1e-12)


def test_zb_v():
    for S, M in SIZES:
        if M >= 2 * S - 1:
            actions = lists(schedules.zb_v, S, M)
            assert [in_flight(row) for row in actions] == [
                most_kept("zb_v", stage, S, M) for stage in range(S)
            ]
            assert simulate(actions, place="V").bubble_rate == bubble("zb_v", S, M) == 0
            for forward, input, weight in ((3, 3, 1), (2, 3, 2), (2.5, 4, 1.5), (1, 5, 0)):
                run = simulate(actions, forward / 2, None, input / 2, weight / 2, place="V")
                assert run.bubble_rate == pytest.approx(
                    bubble("zb_v", S, M, 2, forward, input, weight), abs=1e-12
                )


def test_by_hand():
    assert bubble("gpipe", 4, 8) == 3 / 11 and bubble("interleaved", 4, 8, 2) == 3 / 19
    assert (
        bubble("zb_h1", 4, 8) == 3 / 27
        and bubble("zb_h2", 4, 8) == 0
        and bubble("naive", 4, 1) == 3 / 4
    )
    assert bubble("zb_h1", 3, 6, 1, 2, 3, 1) == 8 / 44


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("1f1b", 2, 4), "not for '1f1b'"),
        (("gpipe", 4, 3), "4 stages is for at least 4 micro-batches, not 3"),
        (("zb_h2", 4, 6), "at least 7 micro-batches, not 6"),
        (
            ("zb_h2", 2, 4, 1, 1, 0.5, 1),
            r"2·T_W up to T_F \+ T_I, not for T_F = 1, T_I = 0.5, T_W = 1",
        ),
        (("zb_h1", 2, 4, 1, 1, 2, 1.5), "T_W up to T_F"),
        (("zb_v", 3, 4), "at least 5 micro-batches, not 4"),
        (("zb_v", 2, 4, 2, 2, 1, 1), "T_F up to T_I, not for T_F = 2, T_I = 1, T_W = 1"),
        (("zb_v", 2, 4, 2, 1, 2, 2), "T_W up to T_F up to T_I"),
    ],
)
def test_where_they_do_not_apply(arguments, words):
    with pytest.raises(ValueError, match=words):
        bubble(*arguments)
    if len(arguments) == 3:
        with pytest.raises(ValueError, match=words):
            most_kept(arguments[0], 0, *arguments[1:])
