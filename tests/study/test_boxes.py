"""Boxes of a matrix: the words, what is refused, the same picture each time."""

import pytest

from minidist.study.boxes import boxes

PANELS = {
    "saved": [("a", (0, 0), (2, 3), 0), ("b", (2, 0), (2, 3), 1)],
    "wanted": [("c", (1, 0), (2, 3), 2)],
}


def test_text():
    assert boxes((4, 3), PANELS, title="Parts").text == (
        "Parts\n  saved:\n    a: [0:2, 0:3]\n    b: [2:4, 0:3]\n  wanted:\n    c: [1:3, 0:3]"
    )


def test_drawn_the_same_each_time():
    one, two = (boxes((4, 3), PANELS, title="Parts") for _ in range(2))
    assert one.png == two.png
    assert one.png[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("shape", "panels", "says"),
    [
        ((4,), PANELS, "of a matrix"),
        ((4, 3), {}, "1 to 4 panels"),
        ((4, 3), {str(i): [] for i in range(5)}, "not 5"),
        ((4, 3), {"x": [("a", (3, 0), (2, 3), 0)]}, "is not in"),
        ((4, 3), {"x": [("a", (0, -1), (2, 3), 0)]}, "is not in"),
        ((9, 9), {"x": [("a", (0, 0), (1, 1), 0)] * 65}, "at most 64"),
    ],
)
def test_refused(shape, panels, says):
    with pytest.raises(ValueError, match=says):
        boxes(shape, panels)
