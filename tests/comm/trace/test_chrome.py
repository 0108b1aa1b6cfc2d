"""The file that Perfetto reads."""

import json
import math

from minidist.comm import Span, Trace
from minidist.comm.trace.timeline import CATEGORIES, OnHost, Timeline


def events_of(trace, tmp_path):
    trace.to_chrome(tmp_path / "t.json")
    return json.loads((tmp_path / "t.json").read_text())["traceEvents"]


def sample():
    trace = Trace(3)
    trace.add(0, 1, 8, 1e-6, 2e-6, 7e-6)
    trace.add(1, 2, 4096, 2e-6, 3e-6, 8e-6, "grad", "lane 0")
    trace.spans.append(Span(2, "main", "compute", 0.0, 5e-6, "matmul"))
    trace.spans.append(Span(2, "lane 1", "compute", 1e-6, 2e-6, "add_"))
    return trace


def test_each_lane_is_a_row_beneath_its_rank(tmp_path):
    events = events_of(sample(), tmp_path)
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
    events = events_of(sample(), tmp_path)
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    starts, ends = ({e["id"]: e for e in events if e["ph"] == ph} for ph in "sf")
    arrows = {(names[starts[i]["tid"]], names[ends[i]["tid"]]) for i in starts}
    assert arrows == {("rank 0", "rank 1"), ("rank 1, lane 0", "rank 2, lane 0")}
    arrow = next(i for i, e in starts.items() if e["name"] == "grad")
    assert math.isclose(starts[arrow]["ts"], 2.0) and math.isclose(ends[arrow]["ts"], 8.0)


def test_spans(tmp_path):
    spans = [e for e in events_of(sample(), tmp_path) if e.get("cat") == "compute"]
    assert [(e["name"], e["ts"]) for e in spans] == [("matmul", 0.0), ("add_", 1.0)]
    assert math.isclose(spans[0]["dur"], 5.0)


def test_memory_is_a_counter_of_each_rank(tmp_path):
    trace = sample()
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
