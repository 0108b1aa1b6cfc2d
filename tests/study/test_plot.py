"""Curves, bars and the traffic matrix: their texts exactly, their bytes again, and what is refused."""

import math

import pytest
import torch
from matplotlib.figure import Figure

from minidist.comm.trace import Trace
from minidist.study import bars, curves, line, traffic
from minidist.study.plot import _bars, _whole_ticks
from tests.study.traces import gather, ring

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
    _whole_ticks(ax, [("a", list(x), [0.5] * len(x))])
    assert all(tick == int(tick) for tick in ax.get_xticks()) == whole
    assert not all(tick == int(tick) for tick in ax.get_yticks())


def test_the_targets_line_does_not_cross_a_number():
    ax = Figure().add_subplot()
    _bars(ax, {"close": 1.24}, {"close": "1.24"}, 1.26)
    [text] = ax.texts
    assert text.get_bbox_patch().get_facecolor()[:3] == tuple(
        int(line.CARD[i : i + 2], 16) / 255 for i in (1, 3, 5)
    )


@pytest.mark.parametrize(
    "draw",
    [
        predicted,
        lambda: bars({"naive": 3e6, "ring": 1.5e6}, unit="B", target=1e6),
        lambda: traffic(ring(4)),
        lambda: traffic(ring(64)),
    ],
)
def test_drawn_the_same_each_time(draw):
    first = draw()
    assert first.png.startswith(b"\x89PNG")
    assert first.png == draw().png


@pytest.mark.parametrize(
    ("lines", "kwargs", "message"),
    [
        ({}, {}, "at least one line"),
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


def test_bars_text():
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
        ({}, {}, "1 to 24 numbers, not 0"),
        ({str(i): i for i in range(25)}, {}, "not 25"),
        ({"a": -1}, {}, "the bar 'a' is -1"),
        ({"a": 1}, {"target": math.inf}, "the bar 'target' is inf"),
    ],
)
def test_bars_refused(values, kwargs, message):
    with pytest.raises(ValueError, match=message):
        bars(values, **kwargs)


def test_traffic_text():
    assert traffic(gather(3)).text == (
        "Bytes from each rank to each: 3 ranks, 2,000 B\n"
        "  rank 0: nothing\n"
        "  rank 1: 1,000 B to 0\n"
        "  rank 2: 1,000 B to 0"
    )
    assert traffic(ring(64)).text == (
        "Bytes from each rank to each: 64 ranks, 4,032,000 B\n  63,000 to 63,000 B from a rank, over 64 of 4,032 links"
    )


def test_traffic_of_a_silent_trace_is_an_empty_matrix():
    assert (
        traffic(Trace(2)).text
        == "Bytes from each rank to each: 2 ranks, 0 B\n  rank 0: nothing\n  rank 1: nothing"
    )


def test_traffic_refused():
    with pytest.raises(ValueError, match="at most 256 ranks, and there are 300"):
        traffic(Trace(300))
