"""Curves, bars, live memory and tables: their texts exactly, their bytes again, and what is refused."""

import math

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from minidist.comm.trace import CATEGORIES, Timeline
from minidist.study import bars, curves, measure, memory_timeline, stacked, table
from minidist.study.charts import APART, PIXELS, _whole_ticks, apart, by_pixel, categories, stack
from minidist.study.picture import BLUE, CARD, MEANING, Card, mix
from tests.comm.nets import Training, mlp
from tests.study.traces import held, remembered

# ------------------------------------------------------------------------------------------------------ curves and bars
SIZES = [1000, 10_000, 100_000]


def predicted():
    return curves(
        {"ring": (SIZES, [1e-5, 2e-5, 1e-4])},
        points={"ring": (SIZES[:1], [1.1e-5])},
        title="Predict, then run",
        xlabel="bytes",
        ylabel="time",
        xunit="B",
        yunit="s",
        logx=True,
        logy=True,
    )


def test_curves_text():
    assert predicted().text == (
        "Predict, then run\n"
        "time against bytes\n"
        "  line ring: 1,000 B: 10 µs; 10 kB: 20 µs; 100 kB: 100 µs\n"
        "  points ring: 1,000 B: 11 µs"
    )


def test_curves_take_tensors_and_list_twelve_points_at_most():
    made = curves({"loss": (range(23), torch.arange(23.0) / 2)})
    assert made.text.startswith("y against x\n  line loss: 0: 0; 2: 1; 4: 2; 6: 3; ")
    assert made.text.endswith("; 22: 11")
    assert made.text.count(";") == 11


def test_curves_that_differ_from_processor_to_processor_are_described_in_words():
    lines = {"ring": (range(3), [2.0, 1.5, 1.1]), "tree": (range(3), [2.0, 1.8, 1.7])}
    made = curves(
        lines,
        points={"ring": ([2], [1.2])},
        ylabel="loss",
        xlabel="step",
        words="The ring is ahead.",
    )
    assert (
        made.text
        == "loss against step\n  line ring\n  line tree\n  points ring\n  The ring is ahead."
    )
    assert (
        made.png == curves(lines, points={"ring": ([2], [1.2])}, ylabel="loss", xlabel="step").png
    )


@pytest.mark.parametrize(("x", "whole"), [(range(4), True), ([0.0, 1.5, 3.0], False)])
def test_stages_and_ranks_are_marked_with_whole_numbers(x, whole):
    ax = Figure(figsize=(8, 3)).add_subplot()
    ax.plot(x, [0.5] * len(x))
    _whole_ticks(ax, [(list(x), [0.5] * len(x))])
    assert all(tick == int(tick) for tick in ax.get_xticks()) == whole
    assert not all(tick == int(tick) for tick in ax.get_yticks())


@pytest.mark.parametrize(
    ("x", "unit", "marks"),
    [
        ([4, 8, 16, 32], None, [4, 8, 16, 32]),
        ([4, 64], None, [5, 10, 20, 50]),
        ([1024, 2048, 4096, 8192], "B", [1000, 2000, 5000]),
        ([3.0, 700.0], "s", [5, 10, 20, 50, 100, 200, 500]),
        ([6.1, 8.3], None, [6.5, 7, 7.5, 8]),
        ([1, 10**6], None, [1, 100, 10**4, 10**6]),
    ],
)
@pytest.mark.parametrize("logy", [False, True])
def test_a_logarithmic_axis_has_three_marks_at_least(x, unit, marks, logy, monkeypatch):
    axes = []
    monkeypatch.setattr(Card, "axes", remember(Card.axes, axes))
    curves({"a": (x, x)}, logx=True, logy=logy, xunit=unit, yunit=unit)
    for axis, log in ((axes[0].xaxis, True), (axes[0].yaxis, logy)):
        low, high = axis.get_view_interval()
        found = [tick for tick in axis.get_majorticklocs() if low <= tick <= high]
        assert len(found) >= 3
        if log:
            assert set(marks) <= set(found) and (len(marks) == len(found) or x[-1] == 10**6)


def remember(method, made):
    def wrapped(self, *args):
        made.append(method(self, *args))
        return made[-1]

    return wrapped


def test_the_targets_line_does_not_cross_a_number(drawn):
    bars({"close": 1.24}, target=1.26)
    [ground] = [style["bbox"] for (_, _, word, *_), style in drawn["word"] if word == "1.24"]
    assert ground["facecolor"] == CARD


def test_names_stand_where_lines_end_and_apart_from_each_other(drawn):
    curves({"low": ([0, 1], [0, 1]), "high": ([0, 1], [1, 9]), "close": ([0, 1], [0, 1.1])})
    place = {word: y for (_, y, word, *_), _ in drawn["word"]}
    assert place["high"] < place["close"] < place["low"]
    assert place["low"] - place["close"] >= APART - 1e-9


def test_apart():
    assert apart([1.0, 2.0], 0, 3) == [1.0, 2.0]
    assert apart([1.0, 1.0, 1.0], 0, 3) == pytest.approx([1.0, 1.0 + APART, 1.0 + 2 * APART])
    assert apart([3.0, 3.0], 0, 3) == pytest.approx([3 - APART, 3.0])


def test_what_has_a_meaning_has_its_colour(drawn):
    curves({"tensor": ([0, 1], [0, 1]), "mine": ([0, 1], [1, 2])})
    colors = [style["color"] for _, style in drawn["line"] if "color" in style]
    assert MEANING["tensor"] in colors and BLUE in colors


@pytest.mark.parametrize(
    "draw",
    [
        predicted,
        lambda: bars({"naive": 3e6, "ring": 1.5e6}, unit="B", target=1e6),
        lambda: memory_timeline(measure(Training(mlp, "momentum").step)),
    ],
)
def test_drawn_the_same_each_time_curves_and_bars(draw):
    first = draw()
    assert first.png.startswith(b"\x89PNG")
    assert first.png == draw().png


@pytest.mark.parametrize(
    ("lines", "kwargs", "message"),
    [
        ({}, {}, "room for 1 to 24 curves, and there are 0"),
        (
            {"a": ([1, 2], [1])},
            {},
            "'a' needs as many x as y, and at least one: it has 2 x and 1 y",
        ),
        ({"a": ([], [])}, {}, "0 x and 0 y"),
        ({"a": ([1], [math.nan])}, {}, "'a' has the value nan, which has no place on the y axis"),
        (
            {"a": ([0], [1])},
            {"logx": True},
            "'a' has the value 0, which has no place on the logarithmic x axis",
        ),
        ({}, {"points": {"b": ([1], [-1.0])}, "logy": True}, "'b' has the value -1.0"),
    ],
)
def test_curves_refused(lines, kwargs, message):
    with pytest.raises(ValueError, match=message):
        curves(lines, **kwargs)


def test_text_of_bars():
    made = bars(
        {"naive": 3_000_000, "ring": 1_500_000},
        title="Bytes",
        unit="B",
        target=1_500_000,
        note="bound",
    )
    assert made.text == "Bytes\n  naive: 3 MB\n  ring: 1.5 MB\n  (bound: 1.5 MB)"
    assert bars({"nothing": 0}).text == "  nothing: 0"


@pytest.mark.parametrize(
    ("values", "kwargs", "message"),
    [
        ({}, {}, "room for 1 to 24 bars, and there are 0"),
        ({str(i): i for i in range(25)}, {}, "there are 25"),
        ({"a": -1}, {}, "the bar 'a' is -1"),
        ({"a": 1}, {"target": math.inf}, "the bar 'target' is inf"),
    ],
)
def test_bars_refused(values, kwargs, message):
    with pytest.raises(ValueError, match=message):
        bars(values, **kwargs)


# -------------------------------------------------------------------------------------------------------------- stacked
HELD = {
    "stage 1": {"parameters": 2000, "optimizer states": 6000},
    "stage 3": {"parameters": 500, "gradients": 0},
}


def test_text_of_stacked():
    assert stacked(HELD, title="Bytes", unit="B", notes={"stage 3": "3Ψ"}).text == (
        "Bytes\n  stage 1: 8,000 B (parameters 2,000 B, optimizer states 6,000 B)\n"
        "  stage 3: 500 B  3Ψ (parameters 500 B)"
    )


def test_parts_stand_on_each_other_in_the_colours_of_their_meaning(drawn):
    stacked(HELD | {"b": {"mine": 1000}})
    parts = [args for args, style in drawn["box"] if style.get("linewidth") == 0 and args[2]]
    inch = 6000 / parts[1][2]
    start = parts[0][0]
    assert [(round((x - start) * inch), round(wide * inch)) for x, _, wide, *_ in parts] == [
        (0, 2000),
        (2000, 6000),
        (0, 500),
        (0, 1000),
    ]
    faces = [mix(MEANING["parameters"], 0.85), mix(MEANING["optimizer states"], 0.85)]
    assert [part[4] for part in parts[:2]] == faces and parts[3][4] not in faces
    words = [args[2] for args, _ in drawn["word"]]
    assert "gradients" not in words  # 0 everywhere


@pytest.mark.parametrize(
    "bars", [{}, {str(i): {"a": 1} for i in range(25)}, {"a": {"b": -1}}, {"a": {"b": math.inf}}]
)
def test_refused_stacked(bars):
    with pytest.raises(ValueError):
        stacked(bars)


# ---------------------------------------------------------------------------------------------------------- live memory
def test_categories_that_held_something_in_the_order_of_their_colours():
    found = list(categories(remembered().memory[1]))
    assert found == ["parameters", "gradients", "activations", "other"]
    assert [name for name in CATEGORIES if name in found] == found


def test_a_moment_of_no_length_is_seen():
    memory = remembered().memory[1]
    starts, shown = by_pixel(memory, 4e-3)
    totals = memory.total[shown]
    assert len(starts) == len(shown) == PIXELS
    assert totals.max() == memory.peak == 5500
    assert (totals == 5500).sum() <= 2
    assert starts[totals.argmax()] == pytest.approx(2e-3, abs=4e-3 / PIXELS)
    assert totals[-1] == 2000


def test_nothing_is_shown_before_the_first_moment():
    starts, shown = by_pixel(held([(2.0, "other", 8)]), 4.0)
    np.testing.assert_allclose(starts[0], 2.0, atol=4 / PIXELS)
    assert set(shown) == {0}


def test_areas_are_stacked():
    ax = Figure().add_subplot()
    stack(ax, remembered().memory[1], 4e-3, 1e-3, most=11_000)
    tops = [c.get_paths()[0].vertices[:, 1].max() for c in ax.collections]
    # kB: parameters, gradients, activations, other
    np.testing.assert_allclose(tops, [1, 2, 2, 5.5], rtol=1e-6)
    assert ax.get_ylabel() == "kB"
    assert ax.get_ylim()[1] == pytest.approx(11 * 1.06)


def test_a_profile_with_its_phases():
    picture = memory_timeline(measure(Training(mlp, "momentum").step), title="A step")
    rows = picture.text.splitlines()
    assert rows[0] == "A step" and rows[1].startswith("  peak ") and "activations" in rows[1]
    assert [row.split("(")[0] for row in rows[2:5]] == [
        "  after forward ",
        "  after backward ",
        "  after step ",
    ]
    assert rows[5].startswith("  at the end: ") and "optimizer states 340 kB" in rows[5]
    assert picture.png.startswith(b"\x89PNG") and (picture.width, picture.height) == (883, 355)


def test_the_same_run_gives_the_same_picture():
    pictures = [memory_timeline(measure(Training(mlp, "momentum").step)).png for _ in range(2)]
    assert pictures[0] == pictures[1]


def test_pictures_that_share_the_top_of_their_axis(drawn):
    run = measure(Training(mlp, "momentum").step)
    texts = {memory_timeline(run, most=most).text for most in (0, run.peak / 2, 4 * run.peak)}
    assert len(texts) == 1
    heights = [args[1][0] for args, _ in drawn["line"]]
    bottom = 0.85 + 0.2 + 2.1
    assert heights[0] == heights[1]
    assert bottom - heights[2] == pytest.approx((bottom - heights[0]) / 4)


def test_memory_that_takes_no_time_is_refused():
    with pytest.raises(ValueError, match="there is no time to draw"):
        memory_timeline(Timeline([0.0, 0.0], [8, -8], [0, 0]))
    with pytest.raises(ValueError, match="there is no time to draw"):
        memory_timeline(Timeline([], [], []))


# --------------------------------------------------------------------------------------------------------------- tables
MADE = table(
    [["naive", 3_000_000, 1.23456], ["a < b", 15, None]],
    ["algorithm", "bytes", "seconds"],
    title="Costs",
)


def test_text_of_tables():
    assert (
        MADE.text
        == repr(MADE)
        == (
            "Costs\n"
            "algorithm      bytes  seconds\n"
            "─────────────────────────────\n"
            "naive      3,000,000    1.235\n"
            "a < b             15        –"
        )
    )


def test_html_follows_the_theme_and_escapes():
    html = MADE._repr_html_()
    assert "a &lt; b" in html
    # a table that is wider than its window scrolls, and the page does not
    assert html.startswith('<div style="overflow-x: auto"><table ')
    assert html.count("<tr>") == 3
    assert "text-align: right" in html
    assert "color: #" not in html
    assert "background" not in html


def test_words_and_truth_values_are_set_to_the_left():
    assert table([[True, None], [False, None]], ["ok", "empty"]).right == [False, False]


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="row 1 has 1 cells, but there are 2 columns: a, b"):
        table([[1, 2], [3]], ["a", "b"])
