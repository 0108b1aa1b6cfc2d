"""The Gantt chart: times in its text, colours of kinds, shades of crowded rows, and what is refused."""

import numpy as np
import pytest

from minidist.comm.trace import Span, Trace
from minidist.study import line, timeline
from minidist.study.gantt import SLICES, _bars, _kinds, _rows, _shades
from tests.study.traces import gather, ring, step


def test_text():
    assert timeline(step(), title="A step").text == (
        "A step\n2 ranks, 4 ms\n  rank 0: compute 4 ms, send 1 ms\n  rank 1: compute 1 ms, wait 2 ms, receive 1 ms"
    )


def test_text_of_two_traces():
    assert timeline({"naive": gather(2), "ring": ring(2)}).text == (
        "Timeline\n"
        "naive: 2 ranks, 1.91 µs\n"
        "  rank 0: receive 954 ns\n"
        "  rank 1: send 954 ns\n"
        "ring: 2 ranks, 1.91 µs\n"
        "  rank 0: send 954 ns, receive 954 ns\n"
        "  rank 1: send 954 ns, receive 954 ns"
    )


def test_many_ranks_are_summed_up_in_text():
    assert timeline(gather(64)).text == (
        "Timeline\n64 ranks, 61 µs\n  send: 0 s to 954 ns a rank, 939 ns on average\n"
        "  receive: 0 s to 60.1 µs a rank, 939 ns on average"
    )
    assert timeline(ring(9)).text == (
        "Timeline\n9 ranks, 15.3 µs\n  send: 7.63 µs on each rank\n  receive: 7.63 µs on each rank"
    )


def test_a_row_for_the_spans_and_the_wires_of_each_lane():
    assert [row[:3] for row in _rows(_bars("", step(), None), [1])] == [
        (1, "main", "do"), (1, "0", "send"), (1, "0", "receive"),
    ]  # fmt: skip


def test_the_receiving_wire_is_busy_until_arrival():
    assert _bars("", step(), None)[1, "0", "receive"] == [(2e-3, 3e-3, "receive", "")]


def test_kinds_keep_their_colours_and_named_ones_get_others():
    trace = step()
    trace.spans += [Span(0, "main", "shuffle", 0, 1, ""), Span(0, "main", "forward", 0, 1, "")]
    kinds = _kinds({"": _bars("", trace, None)})
    assert list(kinds) == ["shuffle", "compute", "forward", "wait", "send", "receive"]
    assert kinds["compute"] == line.BLUE
    assert len(set(kinds.values())) == len(kinds)


def test_shades_are_the_share_of_time_that_was_busy():
    bars = [(i / SLICES, (i + 0.5) / SLICES, "send", "") for i in range(SLICES // 2)]
    shades = _shades(bars, {"send": "#000000"}, 1.0)
    card = np.array([int(line.CARD[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    np.testing.assert_allclose(shades[0, : SLICES // 2], np.tile(0.3 * card, (SLICES // 2, 1)), atol=1e-9)
    np.testing.assert_allclose(shades[0, SLICES // 2 :], np.tile(card, (SLICES - SLICES // 2, 1)), atol=1e-9)


@pytest.mark.parametrize("trace", [step(), ring(4), ring(2, steps=150), {"a": gather(5), "b": ring(3)}])
def test_drawn_the_same_each_time(trace):
    first = timeline(trace)
    assert first.png.startswith(b"\x89PNG")
    assert first.png == timeline(trace).png


def test_height_stays_on_a_page():
    assert timeline(ring(64)).height < 900
    assert timeline(ring(256, steps=2)).height < 900


@pytest.mark.parametrize(("trace", "kwargs", "message"), [
    ({}, {}, "at least one trace"),
    (Trace(2), {}, r"no message and no span of ranks \[0, 1\]"),
    (ring(300, steps=1), {}, "at most 256 ranks, and there are 300"),
    (ring(4), {"ranks": [3, 4]}, r"ranks \[3, 4\] are not all in this trace of 4 ranks, 0 to 3"),
])  # fmt: skip
def test_refused(trace, kwargs, message):
    with pytest.raises(ValueError, match=message):
        timeline(trace, **kwargs)


def test_a_trace_without_time_is_refused():
    still = Trace(2)
    still.add(0, 1, 8, 0, 0, 0)
    with pytest.raises(ValueError, match="there is no time to draw"):
        timeline(still)
