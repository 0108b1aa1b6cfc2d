"""A picture shows itself, once, the same each time, whatever style the notebook has chosen."""

import base64
import io
import re
import subprocess
import sys
from html.parser import HTMLParser

import matplotlib
import numpy as np
import pytest
from PIL import Image

from minidist.comm import launch
from minidist.study import bars
from minidist.study.picture import (
    CARD,
    FAINT,
    HUES,
    INK,
    MEANING,
    MUTED,
    SMALL,
    STYLE,
    TEXT,
    TITLE,
    colors,
    contrast,
    hue,
    ink_on,
    measure,
    mix,
    short,
)
from tests.largest import smallest


def picture():
    return bars({"a": 1, "b": 2}, title="Two numbers")


def pixels(made):
    return np.asarray(Image.open(io.BytesIO(made.png)).convert("RGBA"))


class Shown(HTMLParser):
    """The attributes of the only image, and of the box around it."""

    def handle_starttag(self, tag, attrs):
        assert tag in ("style", "div", "img")
        setattr(self, tag, dict(attrs))


def test_what_a_notebook_is_given():
    """The words as the image's alternative text, and the PNG once."""
    made = bars({"a": 1, "b": 2}, title='Two "numbers" & <more>')
    found = Shown()
    found.feed(made._repr_html_())
    assert found.img["alt"] == made.text == repr(made)
    source = found.img["src"].removeprefix("data:image/png;base64,")
    assert base64.b64decode(source) == made.png
    assert not hasattr(made, "_repr_png_") and not hasattr(made, "_repr_mimebundle_")
    high, wide, _ = pixels(made).shape
    assert (wide, high) == (2 * made.width, 2 * made.height)


def test_words_stay_nine_pixels_high():
    found = Shown()
    found.feed(picture()._repr_html_())
    width = int(found.img["width"])
    least = int(re.search(r"min-width: (\d+)px", found.img["style"])[1])
    smallest_words = SMALL / 72 * 96
    assert 9 <= smallest_words * least / width < 9.1
    assert found.div["style"] == "overflow-x: auto"


def test_same_bytes_each_time_and_in_every_style():
    first = picture().png
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black", "figure.dpi": 50}):
        assert picture().png == first
    assert bars({"a": 1, "b": 3}, title="Two numbers").png != first


def test_same_bytes_in_another_process():
    assert launch(lambda comm: picture().png, 1) == [picture().png]


def test_the_card_is_opaque_and_its_corners_are_not():
    image = pixels(picture())
    assert image[0, 0, 3] == 0
    card = tuple(int(CARD[i : i + 2], 16) for i in (1, 3, 5))
    assert tuple(image[image.shape[0] - 12, 100]) == (*card, 255)
    assert (image[20:-20, 20:-20, 3] == 255).all()


def test_no_figure_is_left_open():
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    picture()
    assert plt.get_fignums() == before


def test_save(tmp_path):
    made = picture()
    made.save(tmp_path / "two.png")
    assert (tmp_path / "two.png").read_bytes() == made.png
    with pytest.raises(ValueError, match=r"saved as \.png, not as '\.svg'"):
        made.save(tmp_path / "two.svg")


def test_core_needs_no_matplotlib():
    code = (
        "import sys; sys.modules['matplotlib'] = None; import minidist, minidist.comm.trace; "
        "assert 'minidist.study' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0, "s", "0 s"),
        (0.0, "B", "0 B"),
        (9999, "B", "9,999 B"),
        (10_000, "B", "10 kB"),
        (1_500_000, "B", "1.5 MB"),
        (2.5e9, "B", "2.5 GB"),
        (1e-6, "s", "1 µs"),
        (0.99e-6, "s", "990 ns"),
        (0.0123456, "s", "12.3 ms"),
        (75.0, "s", "75 s"),
        (-3e-3, "s", "-3 ms"),
        (3, "steps", "3 steps"),
        (0.125, None, "0.125"),
    ],
)
def test_measure(value, unit, shown):
    assert measure(value, unit) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (1234567, "1,234,567"),
        (1234.5, "1,234"),
        (0.98765, "0.988"),
        (100.0, "100"),
        (1e-9, "10⁻⁹"),
        (-2.5e20, "-2.5·10²⁰"),
        (float("inf"), "inf"),
        (-2.5, "-2.5"),
    ],
)
def test_short(value, shown):
    assert short(value) == shown


def test_words_read_on_everything_they_stand_on():
    for ink in (INK, MUTED):
        assert contrast(ink, CARD) >= 4.5
    for color in [mix(color, 0.45) for color in HUES] + [FAINT]:
        assert contrast(INK, color) >= 4.5, color
    for color in MEANING.values():
        assert contrast(ink_on(color), color) >= 4.5, color


def test_contrast_is_that_of_wcag():
    assert round(contrast("#FFFFFF", "#000000"), 6) == 21
    assert contrast("#777777", "#777777") == 1
    # the grey that WCAG's own advice names
    assert round(contrast("#767676", "#FFFFFF"), 2) == 4.54


def test_hues_are_eight_and_come_again():
    assert len(set(HUES)) == 8
    assert hue(3) == hue(11) != hue(4)


def test_mix():
    assert mix("#000000", 1) == "#000000"
    assert mix("#123456", 0) == CARD


def test_no_type_below_nine_points():
    assert (
        smallest(
            SMALL,
            TEXT,
            TITLE,
            *(v for k, v in STYLE.items() if k.endswith(("font.size", "labelsize"))),
        )
        >= 9
    )


def test_what_has_a_meaning_keeps_its_colour_and_the_others_take_what_is_free():
    found = colors(["mine", "parameters", "yours", "mine"])
    assert list(found) == ["mine", "parameters", "yours"]
    assert found["parameters"] == MEANING["parameters"]
    assert len(set(found.values())) == 3
    many = colors(map(str, range(20)))
    assert [many[str(i)] for i in range(20)] == [hue(i) for i in range(20)]


def test_what_belongs_together_has_one_hue():
    for pair in (
        ("forward", "activations"),
        ("backward", "gradients"),
        ("update", "optimizer states"),
    ):
        assert len({MEANING[word] for word in pair}) == 1


def test_what_lies_in_one_stack_or_bar_is_told_apart():
    stacks = (
        ("parameters", "gradients", "optimizer states", "activations", "buffers", "other"),
        ("forward", "backward", "weights", "update", "wait", "send", "receive"),
        ("compute", "recomputation", "bubble", "tensor", "pipeline", "data", "optimizer"),
    )
    for names in stacks:
        assert len({MEANING[name] for name in names}) == len(names)
