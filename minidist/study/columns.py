"""A run as columns of whole numbers: what the viewer's page is given, small enough for a notebook.

Times are counted in ticks of a nanosecond (of less, where a run is over in microseconds). A start is
the distance from the row before, an end the distance from its start, so most numbers have few digits;
a column that repeats itself is its distinct values and where each row's is. What is left out (other
ranks, other times, whatever is above `most`) is said in `limits`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from minidist.comm.trace import Message, Span, Timeline, Trace
from minidist.study.line import MEMORY
from minidist.study.picture import measure
from minidist.study.rows import known_ranks

# a row is a lane of a rank; points are moments of memory, of all ranks together
MOST_ROWS, MOST_POINTS = 128, 6_000


class Part(NamedTuple):
    """The part of a trace that is shown: `ranks` in their order, the seconds from `start` to `end`."""

    ranks: list[int]
    lanes: list[str]
    start: float
    end: float
    messages: list[Message]
    spans: list[Span]
    limits: list[str]


def part(
    trace: Trace, ranks: Sequence[int] | None, between: tuple[float, float] | None, most: int
) -> Part:
    """Choose what is shown of `trace`. Errors: ValueError for an unknown rank, nothing to show, no time."""
    low, high = between or (-math.inf, math.inf)
    if not low < high:
        raise ValueError(f"between needs a start before its end, not {low} and {high}")
    if most < 1:
        raise ValueError(f"most must be at least 1, not {most}")
    known = known_ranks(trace, ranks)
    order, inside = known[:MOST_ROWS], lambda start, end: start < high and end > low
    shown = set(order)
    messages = [
        m for m in trace if (m.src in shown or m.dst in shown) and inside(m.start, m.arrived)
    ]
    spans = [s for s in trace.spans if s.rank in shown and inside(s.start, s.end)]
    lanes = _lanes(messages, spans)
    order = order[: max(1, MOST_ROWS // len(lanes))]
    limits = []
    if len(order) < len(known):
        limits.append(f"{len(order)} of {len(known):,} ranks: choose others with ranks=[…]")
        shown = set(order)
        messages = [m for m in messages if m.src in shown or m.dst in shown]
        spans = [s for s in spans if s.rank in shown]
    if not messages and not spans:
        when = f" between {measure(low, 's')} and {measure(high, 's')}" if between else ""
        raise ValueError(f"the trace has no message and no span of ranks {order}{when}")
    messages, spans, cut, said = _first(messages, spans, most)
    last = max([m.arrived for m in messages] + [s.end for s in spans])
    start, end = (max(0.0, low), min(high, last)) if between else (0.0, last)
    if start < cut < end:
        end = cut
    if end <= start:
        raise ValueError(
            f"every event of the trace is at {measure(end, 's')}: there is no time to draw"
        )
    return Part(order, lanes, start, end, messages, spans, limits + said)


def _lanes(messages: list[Message], spans: list[Span]) -> list[str]:
    """The lanes on which something happens: main, then the others by name."""
    found = {e.lane for rows in (messages, spans) for e in rows}
    return ["main", *sorted(found - {"main"})]


def _first(
    messages: list[Message], spans: list[Span], most: int
) -> tuple[list, list, float, list[str]]:
    """The first `most` of each, as far as both reach, and in which words that is said."""
    messages.sort(key=lambda m: (m.start, m.src, m.dst))
    spans.sort(key=lambda s: (s.start, s.rank))
    cut = min(
        (rows[most].start for rows in (messages, spans) if len(rows) > most), default=math.inf
    )
    kept, out = [[row for row in rows[:most] if row.start <= cut] for rows in (messages, spans)], []
    both = zip(kept, (messages, spans), ("messages", "spans"), strict=True)
    counts = [
        f"{len(some):,} of {len(every):,} {word}"
        for some, every, word in both
        if len(some) < len(every)
    ]
    if counts:
        counts = " and ".join(counts)
        out.append(
            f"the first {counts}, up to {measure(cut, 's')}: choose ranks=[…] or between=(start, end)"
        )
    return *kept, cut, out


# ----------------------------------------------------------------------------------------------------------- columns
def tick_of(end: float) -> float:
    """A nanosecond, or the power of ten below it that cuts `end` seconds into 100,000 ticks or more."""
    return 10.0 ** min(-9, math.floor(math.log10(end)) - 5)


def pack(values: list[int]) -> int | list[int] | dict[str, list[int]]:
    """What says `values` in the fewest letters: the one that all are, the list, or the distinct ones and where."""
    places = {value: i for i, value in enumerate(dict.fromkeys(values))}
    if len(places) == 1:
        return values[0]
    return min(
        values,
        {"distinct": list(places), "where": [places[v] for v in values]},
        key=lambda c: len(text(c)),
    )


def steps(values: list[int]) -> list[int]:
    """Each value less the one before it, the first less 0."""
    return [b - a for a, b in zip([0, *values], values, strict=False)]


def text(value) -> str:
    """`value` as JSON without spaces, safe inside a <script> element."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def columns(shown: Part, kinds: dict[str, str], ink_on) -> dict:
    """The tables of messages and spans with their words: what data.js reads. kinds: each kind's colour."""
    tick = tick_of(shown.end)
    at = lambda seconds: round(seconds / tick)
    words = {word: i for i, word in enumerate(dict.fromkeys(["", *_words(shown)]))}
    lane, kind = ({name: i for i, name in enumerate(names)} for names in (shown.lanes, kinds))
    found = {(s.rank, s.lane) for s in shown.spans}
    found |= {(r, m.lane) for m in shown.messages for r in (m.src, m.dst)}
    ms, ss = shown.messages, shown.spans
    tables = {
        "messages": {
            "src": [m.src for m in ms],
            "dst": [m.dst for m in ms],
            "bytes": [m.nbytes for m in ms],
            "start": steps([at(m.start) for m in ms]),
            "busy": [at(m.sent) - at(m.start) for m in ms],
            "flight": [at(m.arrived) - at(m.sent) for m in ms],
            "word": [words[m.label or ""] for m in ms],
            "lane": [lane[m.lane] for m in ms],
        },
        "spans": {
            "rank": [s.rank for s in ss],
            "lane": [lane[s.lane] for s in ss],
            "kind": [kind[s.kind] for s in ss],
            "start": steps([at(s.start) for s in ss]),
            "long": [at(s.end) - at(s.start) for s in ss],
            "name": [words[s.name] for s in ss],
        },
    }
    out = {
        name: {"count": len(next(iter(t.values())))} | {k: pack(v) for k, v in t.items()}
        for name, t in tables.items()
    }
    rows = [
        [r, lane[name]]
        for r in shown.ranks
        for name in shown.lanes
        if name == "main" or (r, name) in found
    ]
    return out | {
        "tick": tick,
        "unit": unit_of_page(shown.end),
        "start": at(shown.start),
        "end": at(shown.end),
        "ranks": shown.ranks,
        "rows": rows,
        "lanes": shown.lanes,
        "words": list(words),
        "kinds": [[name, color, ink_on(color)] for name, color in kinds.items()],
    }


def _words(shown: Part):
    yield from (m.label or "" for m in shown.messages)
    yield from (s.name for s in shown.spans)


def unit_of_page(end: float) -> tuple[str, float]:
    """One unit for the whole page, with three decimals: so that any two times can be compared at a glance."""
    units = (("ns", 1e-9, 1e-6), ("µs", 1e-6, 1e-2), ("ms", 1e-3, 10.0))
    return next(((name, scale) for name, scale, below in units if end < below), ("s", 1.0))


# ------------------------------------------------------------------------------------------------------------ memory
def memory_columns(
    lines: dict[int, Timeline], shown: Part, tick: float
) -> tuple[dict | None, list[str]]:
    """Each rank's live bytes by category, as changes: when, which category, by how many bytes; ranks alike share one.

    Above 6,000 moments of all ranks together the telling ones are kept, which is said.
    """
    lines = {r: lines[r] for r in shown.ranks if r in lines}
    if not lines:
        return None, []
    names = [c for c in MEMORY if any(timeline.live[c].any() for timeline in lines.values())]
    series = {}
    of = {}
    kept = 0
    for rank, timeline in lines.items():
        some = telling(timeline.total.tolist(), MOST_POINTS // len(lines))
        kept += len(some)
        of[rank] = series.setdefault(text(_changes(timeline, some, names, tick)), len(series))
    total = sum(len(timeline.times) for timeline in lines.values())
    said = (
        [f"{kept:,} of {total:,} moments of memory, the highest among them"] if kept < total else []
    )
    rank = max(lines, key=lambda r: lines[r].peak)
    table = {"categories": [[name, MEMORY[name]] for name in names], "of": of, "rank": rank}
    return table | {"series": [json.loads(s) for s in series]}, said


def telling(total: list[int], most: int) -> list[int]:
    """Of the moments with these sums about `most`, or all: of so many equal parts the highest and the last."""
    if len(total) <= most:
        return list(range(len(total)))
    parts = max(1, most // 2)
    edges = [len(total) * k // parts for k in range(parts + 1)]
    each = [range(a, b) for a, b in pairwise(edges) if a < b]
    return sorted({i for part in each for i in (max(part, key=total.__getitem__), part[-1])})


def _changes(timeline: Timeline, some: list[int], names: list[str], tick: float) -> dict:
    """What differs from each of the moments to the next; less comes before more, so no sum between is too high."""
    when = []
    which = []
    change = []
    before = [0] * len(names)
    live = [timeline.live[name][some].tolist() for name in names]
    for time, now in zip(timeline.times[some].tolist(), zip(*live, strict=True), strict=True):
        for more, k in sorted(
            (b - a, k) for k, (a, b) in enumerate(zip(before, now, strict=True)) if a != b
        ):
            when.append(round(time / tick))
            which.append(k)
            change.append(more)
        before = now
    packed = {"time": pack(steps(when)), "category": pack(which), "change": pack(change)}
    return {"count": len(when), "peak": timeline.peak} | packed
