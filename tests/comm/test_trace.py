"""The record of a run: counted, drawn, merged."""

import json
import math
import pickle
import sys

import numpy as np
import pytest
import torch

from minidist.comm import Message, Results, Span, Trace, World
from minidist.comm.meter import Ledger
from minidist.comm.trace import CATEGORIES, OnHost, Spans, Timeline


def sample_trace():
    trace = Trace(3)
    trace.add(0, 1, 8, 1e-6, 2e-6, 7e-6)
    trace.add(1, 2, 4096, 2e-6, 3e-6, 8e-6, "grad", "lane 0")
    trace.add(0, 1, 16, 3e-6, 4e-6, 9e-6, "grad")
    trace.add(0, 2, 0, 4e-6, 4e-6, 9e-6)
    return trace


def test_messages_come_back_as_they_were():
    trace = sample_trace()
    assert len(trace) == 4
    assert list(trace)[1] == Message(1, 2, 4096, 2e-6, 3e-6, 8e-6, "grad", "lane 0")
    assert [m.label for m in trace] == [None, "grad", "grad", None]


def test_counts():
    trace = sample_trace()
    assert trace.bytes_sent() == 8 + 4096 + 16
    assert [trace.bytes_sent(r) for r in range(3)] == [24, 4096, 0]
    assert trace.bytes_sent(link=(0, 1)) == 24 and trace.bytes_sent(link=(1, 0)) == 0
    assert trace.bytes_sent(1, link=(0, 1)) == 0
    assert (
        trace.messages() == 4 and trace.messages(rank=0) == 3 and trace.messages(link=(0, 2)) == 1
    )
    assert isinstance(trace.bytes_sent(), int) and Trace(1).bytes_sent() == 0


@pytest.mark.parametrize("at_once", [1, 3, 1 << 20])
def test_traffic_by_link(monkeypatch, at_once):
    """Of a window of each sender, the end left out; however many messages are looked at together."""
    monkeypatch.setattr("minidist.comm.trace._AT_ONCE", at_once)
    always = [(0.0, 1.0)] * 3
    trace = sample_trace()
    assert trace.traffic(always) == {(0, 1): (2, 24), (1, 2): (1, 4096), (0, 2): (1, 0)}
    assert trace.traffic([(3e-6, 4e-6), (0.0, 2e-6), (0.0, 1.0)]) == {(0, 1): (1, 16)}
    trace.add(2, 0, 2**53 + 1, 0.5, 1.0, 1.0)
    trace.add(2, 0, 2, 0.5, 1.0, 1.0)
    assert trace.traffic(always)[2, 0] == (2, 2**53 + 3)
    assert Trace(3).traffic(always) == {}
    with pytest.raises(ValueError, match="2 windows were given for 3 ranks"):
        trace.traffic(always[:2])


@pytest.mark.parametrize("kwargs", [dict(rank=3), dict(rank=-1), dict(link=(0, 3))])
def test_a_rank_that_is_not_in_it(kwargs):
    with pytest.raises(ValueError, match="not in this trace of 3 ranks, 0 to 2"):
        sample_trace().bytes_sent(**kwargs)
    with pytest.raises(ValueError, match="not in this trace of 3 ranks"):
        sample_trace().messages(**kwargs)


def test_big_numbers():
    trace = Trace(2)
    trace.add(0, 1, 175 * 10**12, 0.0, 1.0, 1.0)
    assert trace.bytes_sent() == 175 * 10**12


def test_merge_and_begin_at_the_origin():
    trace, other = Trace(3), Trace(3)
    trace.add(0, 1, 8, 12.0, 13.0, 13.0, "b")
    trace.spans.add(0, "main", "compute", 13.0, 14.0, "x")
    other.add(2, 0, 8, 11.0, 13.0, 14.0, "a", "lane 1")
    other.add(1, 0, 8, 11.0, 13.0, 14.0, "b")
    other.spans.add(1, "main", "wait", 12.0, 14.0, "")
    trace.merge(other)
    trace.since(10.0)
    assert list(trace) == [
        Message(1, 0, 8, 1.0, 3.0, 4.0, "b", "main"),
        Message(2, 0, 8, 1.0, 3.0, 4.0, "a", "lane 1"),
        Message(0, 1, 8, 2.0, 3.0, 3.0, "b", "main"),
    ]
    assert trace.spans == [
        Span(1, "main", "wait", 2.0, 4.0, ""),
        Span(0, "main", "compute", 3.0, 4.0, "x"),
    ]


def test_sorted_by_start_then_by_ranks():
    trace, rows = (
        Trace(3),
        [(1, 2, 8, 2.0), (2, 0, 8, 1.0), (1, 0, 16, 1.0), (1, 0, 8, 1.0), (0, 1, 8, 0.0)],
    )
    trace.sort()
    assert list(trace) == []
    for src, dst, nbytes, start in rows:
        trace.add(src, dst, nbytes, start, start + 1, start + 2, str(nbytes), f"lane {src}")
    trace.sort()
    assert [m[:4] for m in trace] == [rows[4], rows[2], rows[3], rows[1], rows[0]]
    assert all(
        m.label == str(m.nbytes) and m.lane == f"lane {m.src}" and m.arrived == m.start + 2
        for m in trace
    )


def test_it_can_grow_while_it_is_read():
    trace = sample_trace()
    seen = [
        trace.add(*m) or (trace.bytes_sent(), trace.messages())
        for m, _ in zip(trace, range(2), strict=False)
    ]
    assert seen == [(4128, 5), (8224, 6)] and len(trace) == 6


def test_memory_is_merged_moved_and_compared():
    trace, other = Trace(2), Trace(2)
    trace.memory[0], other.memory[1] = Timeline([10.0], [8], [0]), Timeline([11.0], [16], [5])
    trace.merge(other)
    trace.since(10.0)
    assert {r: t.times.tolist() for r, t in trace.memory.items()} == {0: [0.0], 1: [1.0]}
    assert [trace.memory[r].peak for r in range(2)] == [8, 16]
    assert trace != Trace(2)


def test_equal():
    one, two = sample_trace(), sample_trace()
    assert one == two and one != "trace"
    two.spans.add(0, "main", "compute", 0.0, 1.0, "")
    assert one != two
    three = sample_trace()
    three.add(0, 1, 8, 0, 0, 0)
    assert one != three


def test_tables():
    text = str(sample_trace()).splitlines()
    assert text[0].split() == ["start", "µs", "arrived", "µs", "from", "→", "to", "bytes", "label"]
    assert text[2].split() == ["2.00", "8.00", "1", "→", "2", "4,096", "grad"]
    assert sample_trace().table(most=3).splitlines()[-1] == "… and 1 more"
    assert repr(sample_trace()) == "Trace(3 ranks, 4 messages, 4,120 bytes)"
    html = sample_trace()._repr_html_()
    assert html.count("<tr>") == 5 and "4,096" in html and "more" not in html


def test_a_label_is_text_in_html():
    trace = Trace(2)
    trace.add(0, 1, 8, 0.0, 0.0, 0.0, "<b>")
    assert "<b>" not in trace._repr_html_()


def test_results_are_a_list():
    results = Results([1, 2], sample_trace(), 0.5)
    assert results == [1, 2] and results.time == 0.5 and len(results.trace) == 4


def test_bytes_are_counted_once_at_the_sender(run):
    def program(comm):
        comm.sendrecv(torch.ones(3), 1 - comm.rank, torch.ones(3), 1 - comm.rank, label="x")
        if comm.rank == 0:
            comm.send(torch.ones(5, dtype=torch.int8), 1)
        else:
            comm.recv(torch.ones(5, dtype=torch.int8), 0)

    results = run(program, 2)
    assert (results.trace.bytes_sent(0), results.trace.bytes_sent(1), results.trace.messages()) == (
        17,
        12,
        3,
    )
    assert sorted((m.src, m.dst, m.nbytes, m.label or "", m.lane) for m in results.trace) == [
        (0, 1, 5, "", "main"),
        (0, 1, 12, "x", "main"),
        (1, 0, 12, "x", "main"),
    ]
    assert all(0 <= m.start <= m.sent <= m.arrived <= results.time for m in results.trace)
    starts = [m.start for m in results.trace]
    assert starts == sorted(starts)
    again = World(2).run(program)
    assert again.trace.bytes_sent() == results.trace.bytes_sent()


# ------------------------------------------------------------
# Spans in columns are Span to whoever reads them.


A, B = Span(0, "main", "compute", 0.0, 1.0, "mm"), Span(3, "lane 0", "wait", 0.5, 2.0, "")


def spans_of(*spans):
    found = Spans()
    for span in spans:
        found.add(*span)
    return found


def test_they_come_back_as_they_were():
    spans = spans_of(A, B, A)
    first = next(iter(spans))
    spans.add(1, "main", "compute", 1.0, 1.5, "mm")
    assert list(spans) == [A, B, A, Span(1, "main", "compute", 1.0, 1.5, "mm")]
    assert len(spans) == 4 and first == A and all(isinstance(s, Span) for s in spans)


def test_equal_to_a_list_and_to_themselves():
    assert spans_of(A, B) == [A, B] and spans_of(A, B) == spans_of(A, B)
    assert spans_of(A, B) != spans_of(B, A) and Spans() == [] and not Spans() and Spans() != "spans"


def test_they_travel_between_processes():
    assert pickle.loads(pickle.dumps(spans_of(A, B))) == [A, B]


def test_one_takes_24_bytes():
    spans = Spans()
    for i in range(10_000):
        spans.add(i % 7, "main", "compute", i, i + 1, "add_")
    room = sys.getsizeof(spans._rows)
    assert 24 * 10_000 <= room < 28 * 10_000 and len(spans._words) == 1


# ------------------------------------------------------------
# Live bytes over time, from changes.


PARAMETERS, ACTIVATIONS, OTHER = (
    CATEGORIES.index(c) for c in ("parameters", "activations", "other")
)


def sample_timeline():
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
    line = sample_timeline()
    assert line.times.tolist() == [0.0, 0.0, 1.0, 1.0, 2.0] and len(line) == 5
    assert line.live["parameters"].tolist() == [100] * 5
    assert line.live["activations"].tolist() == [0, 0, 30, 30, 0]
    assert line.live["other"].tolist() == [0, 20, 20, 0, 0]
    assert line.total.tolist() == [100, 120, 150, 130, 100]
    assert set(line.live) == set(CATEGORIES) and all(
        live.dtype == np.int64 for live in line.live.values()
    )


def test_peak():
    line = sample_timeline()
    assert line.peak == 150 and isinstance(line.peak, int)
    assert line.at_peak == parts(parameters=100, activations=30, other=20)
    assert sum(line.at_peak.values()) == line.peak
    assert (
        str(line) == "Timeline(5 changes, peak 150 bytes: parameters 100, activations 30, other 20)"
    )


def test_at_a_time():
    line = sample_timeline()
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
    line = sample_timeline()
    assert line == sample_timeline() and pickle.loads(pickle.dumps(line)) == line and line != "line"
    assert line != sample_timeline().since(0.5) and line.since(0.5).times.tolist() == [
        -0.5,
        -0.5,
        0.5,
        0.5,
        1.5,
    ]
    other = Timeline(line.times, [100, 20, 30, -20, -30], [PARAMETERS, OTHER, OTHER, OTHER, OTHER])
    assert line != other


def of_ledger(times, changes, which, category, devices, name):
    ledger = Ledger(lambda: 0.0)
    ledger._times, ledger._change = times, changes
    ledger._which = which
    ledger._category, ledger._device = bytearray(category), bytearray(devices)
    ledger._devices = {"cpu": 0, "meta": 1}
    return ledger.timeline(name)


def test_from_the_columns_of_a_ledger():
    # Storage 0 is there from the start though it is found last; storage 1 is on another device.
    times = [0.0, 1.0, 2.0, -np.inf]
    changes = [5, 7, -5, 100]
    which = [2, 1, 2, 0]
    category, device = [PARAMETERS, OTHER, ACTIVATIONS], [0, 1, 0]
    line = of_ledger(times, changes, which, category, device, "cpu")
    assert (
        line.times.tolist() == [0.0, 0.0, 2.0]
        and line.total.tolist() == [100, 105, 100]
        and line.device == "cpu"
    )
    assert line.at(1.0) == parts(parameters=100, activations=5)
    assert of_ledger(times, changes, which, category, device, "meta").total.tolist() == [7]


def test_changes_at_one_time_stay_in_order():
    times = [float(i % 7) for i in range(980)]  # as of lanes that take turns
    changes = [-10 if i // 7 % 2 else 10 for i in range(980)]
    line = of_ledger(times, changes, [0] * 980, [5], [0], "cpu")
    assert line.total.tolist() == [10, 0] * 490


# ------------------------------------------------------------
# The file that Perfetto reads.


def events_of(trace, tmp_path):
    trace.to_chrome(tmp_path / "t.json")
    return json.loads((tmp_path / "t.json").read_text())["traceEvents"]


def sample_chrome():
    trace = Trace(3)
    trace.add(0, 1, 8, 1e-6, 2e-6, 7e-6)
    trace.add(1, 2, 4096, 2e-6, 3e-6, 8e-6, "grad", "lane 0")
    trace.spans.add(2, "main", "compute", 0.0, 5e-6, "matmul")
    trace.spans.add(2, "lane 1", "compute", 1e-6, 2e-6, "add_")
    return trace


def test_each_lane_is_a_row_beneath_its_rank(tmp_path):
    events = events_of(sample_chrome(), tmp_path)
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    order = {e["tid"]: e["args"]["sort_index"] for e in events if e["name"] == "thread_sort_index"}
    assert [names[tid] for tid in sorted(names, key=order.get)] == [
        "rank 0",
        "rank 1",
        "rank 1, lane 0",
        "rank 2",
        "rank 2, lane 0",
        "rank 2, lane 1",
    ]
    assert [names[tid] for tid in range(3)] == ["rank 0", "rank 1", "rank 2"]
    rows = {(names[e["tid"]], e["name"]) for e in events if e["ph"] == "X"}
    assert rows == {
        ("rank 0", "message → 1"),
        ("rank 1, lane 0", "grad → 2"),
        ("rank 2", "matmul"),
        ("rank 2, lane 1", "add_"),
    }


def test_messages_are_arrows_from_row_to_row(tmp_path):
    events = events_of(sample_chrome(), tmp_path)
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    starts, ends = ({e["id"]: e for e in events if e["ph"] == ph} for ph in "sf")
    arrows = {(names[starts[i]["tid"]], names[ends[i]["tid"]]) for i in starts}
    assert arrows == {("rank 0", "rank 1"), ("rank 1, lane 0", "rank 2, lane 0")}
    arrow = next(i for i, e in starts.items() if e["name"] == "grad")
    assert math.isclose(starts[arrow]["ts"], 2.0) and math.isclose(ends[arrow]["ts"], 8.0)


def test_spans(tmp_path):
    spans = [e for e in events_of(sample_chrome(), tmp_path) if e.get("cat") == "compute"]
    assert [(e["name"], e["ts"]) for e in spans] == [("matmul", 0.0), ("add_", 1.0)]
    assert math.isclose(spans[0]["dur"], 5.0)


def test_memory_is_a_counter_of_each_rank(tmp_path):
    trace = sample_chrome()
    trace.memory[1] = Timeline([0.0, 3e-6], [100, 50], [0, 3])
    trace.host[2] = OnHost(Timeline([1e-6], [10], [2], "host"), 0, 0)
    counters = [e for e in events_of(trace, tmp_path) if e["ph"] == "C"]
    assert [(e["name"], e["ts"]) for e in counters] == [
        ("memory of rank 1, bytes", 0.0),
        ("memory of rank 1, bytes", 3.0),
        ("memory of rank 2 on its host, bytes", 1.0),
    ]
    assert counters[1]["args"] == dict.fromkeys(CATEGORIES, 0) | {
        "parameters": 100,
        "activations": 50,
    }
