"""The picture of a schedule: what its words say, and what is refused."""

import pytest

from minidist.parallel.schedules import (
    gpipe,
    interleaved,
    lists,
    one_f_one_b,
    parse,
    pipedream,
    zb_h2,
)
from minidist.parallel.simulate import simulate
from minidist.study import line, schedule
from minidist.study.schedule import KINDS, _face, _fitting


def test_text():
    assert schedule(lists(one_f_one_b, 2, 2), title="1F1B").text == (
        "1F1B\n9, 33.3% of it bubble; activations kept by stage: 2, 1\n"
        "  stage 0: F0 F1 B0 B1\n  stage 1: F0 B0 F1 B1"
    )


def test_several_are_drawn_on_one_axis():
    one = schedule(lists(gpipe, 2, 4))
    both = schedule(
        {
            "GPipe": lists(gpipe, 2, 4),
            "ZB-H2": simulate(lists(zb_h2, 2, 4), forward=1e-3, input=1e-3, weight=1e-3),
        },
        unit="s",
    )
    assert both.height > one.height
    assert "GPipe: 15 s, 20.0% of it bubble; activations kept by stage: 4, 4" in both.text
    assert (
        "ZB-H2: 13 ms, 7.7% of it bubble; a stage's longest time 12 ms, 0.0% of it bubble; activations kept by "
        "stage: 3, 3"
    ) in both.text


def test_the_same_bytes_again():
    assert schedule(lists(pipedream, 3, 6)).png == schedule(lists(pipedream, 3, 6)).png


def test_names_where_all_fit_else_numbers_else_nothing():
    spans = [s for row in simulate(lists(interleaved, 2, 2)).spans for s in row]
    words = lambda inch, tall=0.27: _fitting(spans, inch, tall)[:3]
    assert (
        words(2) == ["F0", "F1", "F0.1"]
        and words(0.2) == ["0", "1", "0"]
        and words(0.02) == ["", "", ""]
    )
    assert words(2, tall=0.1) == ["", "", ""]


def test_words_read_on_every_box():
    for kind in KINDS:
        for chunk in range(4):
            face = _face(parse(f"{kind}0.{chunk}")[0])
            assert line.contrast(line.ink_on(face), face) >= 4.5, (kind, chunk)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({}, "there are 0"),
        (lists(gpipe, 65, 1), "1 to 64 stages, and there are 65"),
        ([parse("F0 B0 F1 B1"), parse("F0 F1 B0 B1")], "stage 0 never comes to B0"),
    ],
)
def test_what_cannot_be_drawn(what, words):
    with pytest.raises(ValueError, match=words):
        schedule(what)
