"""A run as columns: nothing is lost but what is said, and times are right to half a tick."""

import json

import pytest

from minidist.comm.trace import CATEGORIES, Span, Trace
from minidist.study.columns import (
    MOST_POINTS,
    columns,
    memory_columns,
    pack,
    part,
    steps,
    telling,
    text,
    tick_of,
)
from minidist.study.line import KINDS, ink_on
from tests.study.traces import US, gather, held, remembered, ring, step


def unpacked(column, count):
    """What data.js makes of a column."""
    if isinstance(column, int):
        return [column] * count
    return [column["distinct"][i] for i in column["where"]] if isinstance(column, dict) else column


def rows(table):
    """The rows of a table, each a dict, with starts that are distances added up."""
    out = {
        name: unpacked(column, table["count"]) for name, column in table.items() if name != "count"
    }
    out["start"] = [sum(out["start"][: i + 1]) for i in range(table["count"])]
    return [dict(zip(out, row, strict=True)) for row in zip(*out.values(), strict=True)]


def told(trace, **chosen):
    shown = part(trace, chosen.get("ranks"), chosen.get("between"), chosen.get("most", 1000))
    return shown, json.loads(text(columns(shown, KINDS, ink_on)))


@pytest.mark.parametrize("trace", [step(), gather(5), ring(3), ring(4, nbytes=0)])
def test_messages_and_spans_come_back(trace):
    shown, run = told(trace)
    tick = run["tick"]
    words = run["words"]
    lanes = run["lanes"]
    near = lambda ticks, seconds: abs(ticks * tick - seconds) <= 0.51 * tick
    assert run["messages"]["count"] == len(trace) and run["spans"]["count"] == len(trace.spans)
    for m, row in zip(trace, rows(run["messages"]), strict=True):
        assert (row["src"], row["dst"], row["bytes"]) == (m.src, m.dst, m.nbytes)
        assert (words[row["word"]], lanes[row["lane"]]) == (m.label or "", m.lane)
        assert near(row["start"], m.start) and near(row["start"] + row["busy"], m.sent)
        assert near(row["start"] + row["busy"] + row["flight"], m.arrived)
    for s, row in zip(
        sorted(trace.spans, key=lambda s: (s.start, s.rank)), rows(run["spans"]), strict=True
    ):
        assert (row["rank"], lanes[row["lane"]], words[row["name"]]) == (s.rank, s.lane, s.name)
        assert run["kinds"][row["kind"]][0] == s.kind
        assert near(row["start"], s.start) and near(row["start"] + row["long"], s.end)
    assert near(run["end"], shown.end)


def test_a_row_for_each_rank_and_for_each_of_its_lanes():
    _, run = told(step())
    assert run["lanes"] == ["main", "0"]
    assert run["rows"] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert told(step(), ranks=[1])[1]["rows"] == [[1, 0], [1, 1]]
    two_of_three = ring(3)
    two_of_three.add(0, 2, 8, 0.0, US, 2 * US, lane="lane 7")
    assert told(two_of_three)[1]["rows"] == [[0, 0], [0, 1], [1, 0], [2, 0], [2, 1]]


@pytest.mark.parametrize(
    ("values", "packed"),
    [
        ([], []),
        ([7, 7, 7], 7),
        ([1, 2, 3], [1, 2, 3]),
        ([1000000, 2000000] * 9, {"distinct": [1000000, 2000000], "where": [0, 1] * 9}),
    ],
)
def test_pack(values, packed):
    assert pack(values) == packed
    assert unpacked(packed, len(values)) == values


def test_steps():
    assert steps([3, 3, 5, 4]) == [3, 0, 2, -1]
    assert steps([]) == []


@pytest.mark.parametrize(
    ("end", "tick"), [(2.0, 1e-9), (1e-3, 1e-9), (5e-5, 1e-10), (1.9e-6, 1e-11)]
)
def test_short_runs_have_finer_ticks(end, tick):
    assert tick_of(end) == pytest.approx(tick)
    assert end / tick_of(end) >= 1e5


@pytest.mark.parametrize(("end", "unit"), [(5e-7, "ns"), (9e-3, "µs"), (2.0, "ms"), (60.0, "s")])
def test_one_unit_for_a_page(end, unit):
    trace = Trace(2)
    trace.add(0, 1, 8, 0.0, end, end)
    assert told(trace)[1]["unit"][0] == unit


# ---------------------------------------------------------------------------------------------- what is left out
def test_all_of_a_small_run_is_shown():
    assert part(ring(4), None, None, 12).limits == []


def test_too_many_messages():
    shown = part(ring(4, steps=5), None, None, 9)
    assert len(shown.messages) == 9
    assert shown.end == 4 * US  # the 10th starts then
    assert shown.limits == [
        "the first 9 of 20 messages, up to 3.81 µs: choose ranks=[…] or between=(start, end)"
    ]


def test_too_many_spans_cut_the_messages_too():
    trace = ring(2, steps=4)
    trace.spans += [Span(0, "main", "compute", k * US, (k + 1) * US, "") for k in range(6)]
    shown = part(trace, None, None, 3)
    assert [len(shown.messages), len(shown.spans), shown.end] == [3, 3, 2 * US]
    assert shown.limits[0].startswith("the first 3 of 8 messages and 3 of 6 spans, up to 1.91 µs:")


def test_messages_that_all_start_at_once():
    trace = Trace(3)
    for r in (1, 2):
        trace.add(0, r, 8, 0.0, US, 2 * US)
    shown = part(trace, None, None, 1)
    assert (len(shown.messages), shown.end) == (1, 2 * US)


def test_more_ranks_than_rows():
    shown = part(ring(200, steps=1), None, None, 1000)
    assert shown.ranks == list(range(128))
    assert shown.limits == ["128 of 200 ranks: choose others with ranks=[…]"]
    assert {m.src for m in shown.messages} == {*range(128), 199}  # 199 sends to rank 0


def test_lanes_take_rows_from_ranks():
    trace = ring(200, steps=1)
    for r in range(200):
        trace.spans.append(Span(r, "lane 0", "compute", 0.0, US, ""))
    assert part(trace, None, None, 1000).limits == ["64 of 200 ranks: choose others with ranks=[…]"]
    assert {s.rank for s in part(trace, None, None, 1000).spans} == set(range(64))
    assert part(trace, range(100, 150), None, 1000).limits == []


def test_a_part_of_the_time():
    shown = part(ring(4), None, (2.5 * US, 3.5 * US), 1000)
    assert (shown.start, shown.end) == (2.5 * US, 3.5 * US)
    assert {m.start for m in shown.messages} == {2 * US}


@pytest.mark.parametrize(
    ("trace", "kwargs", "message"),
    [
        (Trace(2), {}, r"no message and no span of ranks \[0, 1\]"),
        (
            ring(4),
            {"ranks": [3, 4]},
            r"ranks \[3, 4\] are not all in this trace of 4 ranks, 0 to 3",
        ),
        (ring(4), {"ranks": []}, r"ranks \[\] are not all"),
        (ring(4), {"between": (2, 1)}, "needs a start before its end, not 2 and 1"),
        (
            ring(4),
            {"between": (1, 2)},
            r"no message and no span of ranks \[0, 1, 2, 3\] between 1 s and 2 s",
        ),
        (ring(4), {"most": 0}, "most must be at least 1, not 0"),
    ],
)
def test_refused(trace, kwargs, message):
    with pytest.raises(ValueError, match=message):
        told(trace, **kwargs)


def test_a_trace_without_time_is_refused():
    still = Trace(2)
    still.add(0, 1, 8, 0, 0, 0)
    with pytest.raises(ValueError, match="there is no time to draw"):
        told(still)


# -------------------------------------------------------------------------------------------------------- memory
def live(table, rank, tick):
    """(seconds, live bytes by category) after each change that a page is told of."""
    series = table["series"][table["of"][rank]]
    count = series["count"]
    names = [name for name, _ in table["categories"]]
    held = {}
    time = 0
    for later, which, change in zip(
        *(unpacked(series[k], count) for k in ("time", "category", "change")), strict=True
    ):
        time += later
        held[names[which]] = held.get(names[which], 0) + change
        yield time * tick, {name: nbytes for name, nbytes in held.items() if nbytes}


def test_memory_comes_back():
    trace, tick = remembered(), 1e-9
    table, said = memory_columns(trace.memory, part(trace, None, None, 10), tick)
    assert (
        said == [] and table["rank"] == 1 and [s["peak"] for s in table["series"]] == [1500, 5500]
    )
    for rank, timeline in trace.memory.items():
        live_at = lambda i, held=timeline.live: {
            c: int(held[c][i]) for c in CATEGORIES if held[c][i]
        }
        wanted = [live_at(i) for i in range(len(timeline))]
        got = list(live(table, rank, tick))
        assert [bytes_ for _, bytes_ in got] == wanted
        assert [t for t, _ in got] == pytest.approx(timeline.times.tolist(), abs=tick)


def test_ranks_that_hold_the_same_share_a_series():
    trace = remembered()
    trace.memory[1] = trace.memory[0]
    table, _ = memory_columns(trace.memory, part(trace, None, None, 10), 1e-9)
    assert table["of"] == {0: 0, 1: 0} and len(table["series"]) == 1


def test_no_memory():
    assert memory_columns({}, part(step(), None, None, 10), 1e-9) == (None, [])
    assert memory_columns(remembered().memory, part(ring(4), [2, 3], None, 10), 1e-9) == (None, [])


def test_many_moments_keep_the_peak_and_the_end():
    trace, n = step(), 3 * MOST_POINTS
    saw = [(k * 1e-6, "activations", 1000 - 990 * (k % 2) if k % 2 == 0 else -10) for k in range(n)]
    saw[n // 3] = (saw[n // 3][0], "activations", 10**9)
    saw[n // 3 + 1] = (saw[n // 3 + 1][0], "activations", -(10**9))
    trace.memory[0] = held(saw)
    table, said = memory_columns(trace.memory, part(trace, None, None, 10), 1e-9)
    got = [sum(bytes_.values()) for _, bytes_ in live(table, 0, 1e-9)]
    assert max(got) == trace.memory[0].peak == table["series"][0]["peak"]
    assert got[-1] == trace.memory[0].total[-1]
    assert len(got) <= MOST_POINTS
    assert said == [f"{len(got):,} of {n:,} moments of memory, the highest among them"]


def test_several_categories_at_once_give_no_false_peak():
    trace = step()
    trace.memory[0] = held([(0.0, "other", 100), (1e-3, "other", -100), (1e-3, "buffers", 90)] * 1)
    shown = part(trace, None, None, 10)
    table, _ = memory_columns({0: Skipping(trace.memory[0])}, shown, 1e-9)
    assert max(sum(b.values()) for _, b in live(table, 0, 1e-9)) == 100


class Skipping:
    """A Timeline without its middle moment, as thinning leaves one."""

    def __init__(self, line):
        self.times = line.times[[0, 2]]
        self.total = line.total[[0, 2]]
        self.peak = line.peak
        self.live = {name: bytes_[[0, 2]] for name, bytes_ in line.live.items()}


def test_telling():
    assert telling([1, 2, 3], 3) == [0, 1, 2]
    assert telling([5, 9, 1, 2, 3, 8, 0, 4], 4) == [1, 3, 5, 7]
