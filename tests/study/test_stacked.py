"""Bars made of parts: their text, the lengths that are drawn, and what is refused."""

import math

import pytest
from matplotlib.figure import Figure

from minidist.study import line, stacked
from minidist.study.stacked import _colors, _draw

HELD = {
    "stage 1": {"parameters": 2000, "optimizer states": 6000},
    "stage 3": {"parameters": 500, "gradients": 0},
}


def test_text():
    assert stacked(HELD, title="Bytes", unit="B", notes={"stage 3": "3Ψ"}).text == (
        "Bytes\n  stage 1: 8,000 B (parameters 2,000 B, optimizer states 6,000 B)\n"
        "  stage 3: 500 B  3Ψ (parameters 500 B)"
    )


def test_parts_stand_on_each_other_in_the_colours_of_memory():
    colors, ax = _colors(HELD | {"b": {"mine": 1}}), Figure().add_subplot()
    assert list(colors) == ["parameters", "optimizer states", "mine"]  # gradients are 0 everywhere
    assert colors["parameters"] == line.MEMORY["parameters"] and len(set(colors.values())) == 3
    _draw(ax, HELD, colors, dict.fromkeys(HELD, ""))
    drawn = [
        (p.get_y() + p.get_height() / 2, p.get_x(), p.get_width())
        for p in ax.patches
        if p.get_width()
    ]
    assert [(round(y, 6), x, w) for y, x, w in drawn] == [
        (0, 0, 2000),
        (0, 2000, 6000),
        (1, 0, 500),
    ]


@pytest.mark.parametrize(
    "bars", [{}, {str(i): {"a": 1} for i in range(25)}, {"a": {"b": -1}}, {"a": {"b": math.inf}}]
)
def test_refused(bars):
    with pytest.raises(ValueError):
        stacked(bars)
