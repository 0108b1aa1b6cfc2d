"""Live bytes over time, from changes."""

import pickle

import numpy as np

from minidist.comm.trace.timeline import CATEGORIES, Timeline

PARAMETERS, ACTIVATIONS, OTHER = (
    CATEGORIES.index(c) for c in ("parameters", "activations", "other")
)


def sample():
    return Timeline(
        [0.0, 0.0, 1.0, 1.0, 2.0],
        [100, 20, 30, -20, -30],
        [PARAMETERS, OTHER, ACTIVATIONS, OTHER, 3],
    )


def parts(**held):
    return dict.fromkeys(CATEGORIES, 0) | held


def test_the_six_categories():
    assert CATEGORIES == (
        "parameters",
        "gradients",
        "optimizer states",
        "activations",
        "buffers",
        "other",
    )


def test_live_and_total():
    line = sample()
    assert line.times.tolist() == [0.0, 0.0, 1.0, 1.0, 2.0] and len(line) == 5
    assert line.live["parameters"].tolist() == [100] * 5
    assert line.live["activations"].tolist() == [0, 0, 30, 30, 0]
    assert line.live["other"].tolist() == [0, 20, 20, 0, 0]
    assert line.total.tolist() == [100, 120, 150, 130, 100]
    assert set(line.live) == set(CATEGORIES) and all(
        live.dtype == np.int64 for live in line.live.values()
    )


def test_peak():
    line = sample()
    assert line.peak == 150 and isinstance(line.peak, int)
    assert line.at_peak == parts(parameters=100, activations=30, other=20)
    assert sum(line.at_peak.values()) == line.peak
    assert (
        str(line) == "Timeline(5 changes, peak 150 bytes: parameters 100, activations 30, other 20)"
    )


def test_at_a_time():
    line = sample()
    assert line.at(-1.0) == parts() and line.at(0.5) == parts(parameters=100, other=20)
    assert line.at(1.0) == parts(parameters=100, activations=30) and line.at(float("inf")) == parts(
        parameters=100
    )


def test_empty():
    line = Timeline([], [], [], "meta")
    assert (line.peak, len(line), line.device) == (0, 0, "meta") and line.at_peak == line.at(
        1.0
    ) == parts()
    assert str(line) == "Timeline(0 changes, peak 0 bytes)"


def test_equal_and_pickled():
    line = sample()
    assert line == sample() and pickle.loads(pickle.dumps(line)) == line and line != "line"
    assert line != sample().since(0.5) and line.since(0.5).times.tolist() == [
        -0.5,
        -0.5,
        0.5,
        0.5,
        1.5,
    ]
    other = Timeline(line.times, [100, 20, 30, -20, -30], [PARAMETERS, OTHER, OTHER, OTHER, OTHER])
    assert line != other


def test_from_the_columns_of_a_ledger():
    # Storage 0 is there from the start though it is found last; storage 1 is on another device.
    times = [0.0, 1.0, 2.0, -np.inf]
    changes = [5, 7, -5, 100]
    which = [2, 1, 2, 0]
    category, device = bytearray([PARAMETERS, OTHER, ACTIVATIONS]), bytearray([0, 1, 0])
    line = Timeline.of(times, changes, which, category, device, "cpu", 0)
    assert (
        line.times.tolist() == [0.0, 0.0, 2.0]
        and line.total.tolist() == [100, 105, 100]
        and line.device == "cpu"
    )
    assert line.at(1.0) == parts(parameters=100, activations=5)
    assert Timeline.of(times, changes, which, category, device, "meta", 1).total.tolist() == [7]


def test_changes_at_one_time_stay_in_order():
    times = [float(i % 7) for i in range(980)]  # as of lanes that take turns
    changes = [-10 if i // 7 % 2 else 10 for i in range(980)]
    line = Timeline.of(times, changes, [0] * 980, bytearray([5]), bytearray([0]), "cpu", 0)
    assert line.total.tolist() == [10, 0] * 490
