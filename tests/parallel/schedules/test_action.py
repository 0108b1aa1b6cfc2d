"""Actions, their words, and what a schedule asks of its arguments."""

import pytest

from minidist.parallel import schedules
from minidist.parallel.schedules import Action, lists, one_f_one_b, parse


@pytest.mark.parametrize(
    ("word", "action"),
    [
        ("F0", Action("F", 0)),
        ("B12", Action("B", 12, 0)),
        ("I3.1", Action("I", 3, 1)),
        ("W7.10", Action("W", 7, 10)),
        ("U5", Action("U", 5)),
    ],
)
def test_words(word, action):
    assert Action.parse(word) == action and str(action) == repr(action) == word


def test_chunk_0_may_be_named():
    assert Action.parse("F3.0") == Action("F", 3) and str(Action("F", 3, 0)) == "F3"


@pytest.mark.parametrize("word", ["", "F", "3", "f3", "X3", "F-1", "F3.", "F3.1.2", "F3 ", "F3,"])
def test_a_word_that_is_no_action(word):
    with pytest.raises(ValueError, match="is no action"):
        Action.parse(word)


def test_a_list_from_words():
    assert parse("F0 F1  B0\nB1") == [
        Action("F", 0),
        Action("F", 1),
        Action("B", 0),
        Action("B", 1),
    ]
    assert str(parse("F0 F1.1")) == "[F0, F1.1]"


def test_lists_of_all_stages():
    assert lists(one_f_one_b, 2, 2) == [parse("F0 F1 B0 B1"), parse("F0 B0 F1 B1")]


@pytest.mark.parametrize(
    "schedule", [schedules.naive, schedules.gpipe, one_f_one_b, schedules.interleaved]
)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 0, 4), "1 stage, not 0"),
        ((0, 2, 0), "1 micro-batch, not 0"),
        ((2, 2, 4), "no stage 2 in a pipeline of 2"),
        ((-1, 2, 4), "no stage -1"),
    ],
)
def test_bad_arguments(schedule, arguments, words):
    with pytest.raises(ValueError, match=words):
        schedule(*arguments)
