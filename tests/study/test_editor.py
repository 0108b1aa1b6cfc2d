"""The schedule editor: its words, what its page is given, and what is refused. Its rules: tests/browser/test_editor.py."""

import pytest

from minidist.parallel.schedules import gpipe, interleaved, lists, one_f_one_b, parse_lists, zb_h1
from minidist.parallel.simulate import simulate
from minidist.parallel.validate import validate
from minidist.study import schedule_editor, stages
from minidist.study.picture import MEANING
from tests.study.frames import run_of

WRONG = "F0 F1 B0 B1\nF0 B1 B0 F1"


def test_text_of_right_and_wrong_ones():
    made = schedule_editor({"1F1B": lists(one_f_one_b, 2, 2), "?": parse_lists(WRONG)}, 2)
    assert made.text == (
        "A schedule to change\n"
        "1F1B: time 9, bubble 33.3 %\n"
        "  stage 0: F0 F1 B0 B1 (2 activations at most)\n"
        "  stage 1: F0 B0 F1 B1 (1 activations at most)\n"
        "?: stage 1, position 1, B1: it needs F1, which comes later in the list\n"
        "  stage 0: F0 F1 B0 B1 (2 activations at most)\n"
        "  stage 1: F0 B1 B0 F1 (1 activations at most)"
    )


def test_its_picture_is_when_the_actions_run_or_how_they_are_listed():
    rows = lists(one_f_one_b, 2, 2)
    right = schedule_editor({"1F1B": rows}, 2)
    assert right.picture.png == stages({"1F1B": simulate(rows)}, title=right.title).png
    rows = [[(action, i, i + 1) for i, action in enumerate(row)] for row in parse_lists(WRONG)]
    wrong = schedule_editor({"?": parse_lists(WRONG)}, 2)
    assert wrong.picture.png == stages({"?, as listed": rows}, title=wrong.title).png


def test_the_page_is_given_the_lists_and_the_rules_words():
    run = run_of(schedule_editor({"a": lists(zb_h1, 2, 2), "b": lists(gpipe, 2, 2)}, 2).page)
    assert run["schedules"]["b"] == ["F0 F1 B0 B1"] * 2
    assert run["shape"] == {"S": 2, "M": 2, "v": 1, "place": "loop"}
    assert run["rules"]["nouns"]["I"] == "backward for the input"
    assert run["rules"]["form"].startswith("write one of F, B, I, W, U, then the micro-batch")
    assert run["colors"]["F"][0] == MEANING["forward"]


def test_lists_of_a_text_come_back():
    for S, M in ((1, 1), (3, 4)):
        for schedule in (one_f_one_b, zb_h1):
            text = "\n".join(" ".join(map(str, row)) for row in lists(schedule, S, M))
            assert parse_lists(text) == parse_lists(f"\n{text}\n") == lists(schedule, S, M)
    validate(parse_lists("F0 F1 B0 B1\nF0 B0 F1 B1"), S=2, M=2)


@pytest.mark.parametrize(
    ("schedules", "options", "words"),
    [
        ({}, {"M": 2}, r"one number of stages are needed, not {}"),
        (
            {"a": lists(gpipe, 2, 2), "b": lists(gpipe, 3, 2)},
            {"M": 2},
            r"one number of stages are needed, not {'a': 2, 'b': 3}",
        ),
        ({"a": lists(gpipe, 2, 2)}, {"M": 0}, "at least 1 micro-batch"),
        ({"a": lists(interleaved, 2, 2)}, {"M": 2, "v": 3, "place": "V"}, "not as 'V' of 3"),
        ({"a": lists(gpipe, 2, 2)}, {"M": 2, "comm": "pigeons"}, "not 'pigeons'"),
    ],
)
def test_refused(schedules, options, words):
    with pytest.raises(ValueError, match=words):
        schedule_editor(schedules, **options)
