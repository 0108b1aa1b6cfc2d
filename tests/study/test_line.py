"""Colours that read on the card, and on what may lie around it."""

from minidist.study import line
from tests.largest import smallest


def test_words_read_on_everything_they_stand_on():
    for ink in (line.INK, line.MUTED):
        assert line.contrast(ink, line.CARD) >= 4.5
    for color in [line.mix(hue, 0.45) for hue in line.HUES] + [line.FAINT]:
        assert line.contrast(line.INK, color) >= 4.5, color
    for color in (*line.KINDS.values(), *line.OTHER_KINDS):
        assert line.contrast(line.ink_on(color), color) >= 4.5, color


def test_contrast_is_that_of_wcag():
    assert round(line.contrast("#FFFFFF", "#000000"), 6) == 21
    assert line.contrast("#777777", "#777777") == 1
    # the grey that WCAG's own advice names
    assert round(line.contrast("#767676", "#FFFFFF"), 2) == 4.54


def test_hues_are_eight_and_come_again():
    assert len(set(line.HUES)) == 8
    assert line.hue(3) == line.hue(11) != line.hue(4)


def test_mix():
    assert line.mix("#000000", 1) == "#000000"
    assert line.mix("#123456", 0) == line.CARD


def test_no_type_below_nine_points():
    assert (
        smallest(
            line.SMALL,
            line.TEXT,
            line.TITLE,
            *(v for k, v in line.RC.items() if k.endswith("size")),
        )
        >= 9
    )
