"""Who did what and when: the timelines of runs, still and as a page to look into.

    timeline   one trace, or several on one axis of time; live memory under it
    stages     when the stages of a pipeline worked: a simulation, or what ranks noted while they ran
    viewer     a page to zoom, point at, click and search: for every trace that a reader should look into

Each rank has a row for what it did (its spans), and under it two thin ones for its wires: the sender's is busy from a
message's start until it is sent, the receiver's for as long before the message has arrived. Lanes of `stream` have rows
of their own, beneath the rank's. Of a very large run the beginning is shown, and what is left out is said.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from html import escape
from itertools import pairwise, product
from typing import Any

from matplotlib.collections import PolyCollection

from minidist.comm.trace import CATEGORIES, Message, Results, Span, Timeline, Trace
from minidist.parallel.schedules import Action
from minidist.parallel.simulate import Simulation
from minidist.study.charts import categories, held_words, stack
from minidist.study.frames import Framed, document
from minidist.study.picture import (
    INK,
    MARGIN,
    MEANING,
    SMALL,
    TEXT,
    TIME_UNITS,
    WIDTH,
    Card,
    Picture,
    card,
    check_time,
    colors,
    inches,
    ink_on,
    measure,
    room,
    unit_of,
)

# ------------------------------------------------------------------------------------------------- what of a run is shown
TALL = {"do": 0.26, "send": 0.1, "receive": 0.1}  # inches of a row, where there is room
MOST_RANKS = 128
MOST_EVENTS = 20_000


class Chart:
    """What is shown of one trace: `ranks`, in this order, and what they did up to `end` seconds.

    messages, spans: by their start.  bars: (rank, lane, row) → (start, end, kind, name) of each.  kinds: of all bars.
    memory: the first rank with the highest peak of live bytes, and its Timeline, or None.  limits: what is left out, in
    words.
    Errors: ValueError for an unknown rank, or nothing to show.
    """

    def __init__(self, trace: Trace, ranks: Sequence[int] | None = None):
        order = list(range(trace.n) if ranks is None else ranks)
        if not order or not set(order) <= set(range(trace.n)):
            raise ValueError(
                f"ranks {sorted(order)} are not all in this trace of {trace.n} ranks, 0 to {trace.n - 1}"
            )
        self.ranks = order[:MOST_RANKS]
        self.limits = []
        if len(order) > MOST_RANKS:
            words = f"{MOST_RANKS} of {len(order):,} ranks: choose others with ranks=[…]"
            self.limits.append(words)
        shown = set(self.ranks)
        events: list[Message | Span] = [m for m in trace if m.src in shown or m.dst in shown]
        events += [span for span in trace.spans if span.rank in shown]
        if not events:
            raise ValueError(f"the trace has no message and no span of ranks {order}")
        events.sort(key=lambda event: event.start)
        first = events[:MOST_EVENTS]
        self.messages = [event for event in first if isinstance(event, Message)]
        self.spans = [event for event in first if isinstance(event, Span)]
        self.bars = bars_of(self.messages, self.spans, shown)
        self.end = max(end for row in self.bars.values() for _, end, *_ in row)
        self.kinds = {kind for row in self.bars.values() for *_, kind, _ in row}
        if len(events) > MOST_EVENTS:
            self.end = max(events[MOST_EVENTS].start, events[0].start)
            words = f"the first {MOST_EVENTS:,} of {len(events):,} messages and spans"
            self.limits.append(f"{words}, up to {measure(self.end, 's')}: choose ranks=[…]")
        check_time(self.end)
        held = [
            (rank, trace.memory[rank]) for rank in self.ranks if len(trace.memory.get(rank, ()))
        ]
        self.memory = max(held, key=lambda pair: pair[1].peak, default=None)

    def rows(self, squeeze: float = 1.0) -> tuple[dict[tuple[int, str, str], float], float]:
        """Where each row begins, in inches from the top, the same rows for each rank; and how tall all are."""
        lanes = sorted({lane for _, lane, _ in self.bars}, key=lambda lane: (lane != "main", lane))
        used = {(lane, row) for _, lane, row in self.bars}
        places = {}
        y = 0.0
        for rank in self.ranks:
            y += 0.1 * squeeze
            for lane in lanes:
                for row in TALL:
                    if (lane, row) in used:
                        places[rank, lane, row] = y
                        y += TALL[row] * squeeze
                y += 0.04 * squeeze
        return places, y + 0.06 * squeeze


def bars_of(messages: Iterable[Message], spans: Iterable[Span], shown: set[int]) -> dict:
    """The bars of each row of the ranks `shown`, by their start."""
    bars = defaultdict(list)
    for s in spans:
        bars[s.rank, s.lane, "do"].append((s.start, s.end, s.kind, s.name))
    for m in messages:
        busy = m.sent - m.start
        if m.src in shown:
            bars[m.src, m.lane, "send"].append((m.start, m.sent, "send", ""))
        if m.dst in shown:
            bars[m.dst, m.lane, "receive"].append((m.arrived - busy, m.arrived, "receive", ""))
    return {key: sorted(row) for key, row in bars.items()}


def kinds_of(names: set[str]) -> dict[str, str]:
    """The colour of each kind of bar, in the order of the legend: a program's own first."""
    known = list(MEANING)
    return colors(
        sorted(names, key=lambda kind: (known.index(kind) if kind in MEANING else -1, kind))
    )


# ------------------------------------------------------------------------------------------------------ still pictures
LEFT = MARGIN + 0.85  # inches: where the rows begin, beside the names of the ranks
WIDE = WIDTH - MARGIN - LEFT - 0.15
MOST_INCHES = 7.0  # of all rows
MOST_ARROWS = (
    60  # in the still picture: more cannot be told apart, and cost more bytes than all else
)
MEMORY = 1.47  # inches


def timeline(
    trace: Trace | Mapping[str, Trace],
    *,
    title: str = "Timeline",
    ranks: Sequence[int] | None = None,
    memory: bool = True,
) -> Picture:
    """Draw when each rank computed, waited, sent and received; `{"naive": t1, "ring": t2}` compares traces.

    ranks: only these ranks, in this order.  memory: under a trace that has followed memory, draw the live bytes of the
    rank with the highest peak.
    Errors: ValueError for no trace, an empty one, an unknown rank, and a run that takes no time.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.study import timeline
    >>> def program(comm):
    ...     if comm.rank == 0:
    ...         comm.send(torch.ones(1000), 1)
    ...     else:
    ...         comm.recv(torch.empty(1000), 0)
    >>> timeline(World(2).run(program).trace)  # a World's virtual seconds
    Timeline
    2 ranks, 5.08 µs
      rank 0: send 80 ns
      rank 1: receive 80 ns
    """
    traces = trace if isinstance(trace, Mapping) else {"": trace}
    room("traces", len(traces), 16)
    charts = {name: Chart(each, ranks) for name, each in traces.items()}
    for chart in charts.values():
        chart.memory = chart.memory if memory else None
    limits = [words for chart in charts.values() for words in chart.limits]
    return draw(title, charts, limits)


def draw(
    title: str, charts: Mapping[str, Chart], limits: list[str], arrows: bool = False
) -> Picture:
    """The charts under each other, on one axis of time; what is left out is said above them."""
    kinds = kinds_of(set().union(*(chart.kinds for chart in charts.values())))
    end = max(chart.end for chart in charts.values())
    squeeze = min(1.0, MOST_INCHES / sum(chart.rows()[1] for chart in charts.values()))
    most = max((chart.memory[1].peak for chart in charts.values() if chart.memory), default=0)
    top = 0.8 + 0.2 * len(limits)
    deep = {name: chart.rows(squeeze)[1] + 0.3 * bool(name) for name, chart in charts.items()}
    memories = sum(bool(chart.memory) for chart in charts.values())
    tall = sum(deep.values()) + 0.12 * len(deep) + MEMORY * memories
    with card(WIDTH, top + tall + 0.43, title) as sheet:
        sheet.key(MARGIN, 0.58, kinds)
        for k, words in enumerate(limits):
            sheet.note(MARGIN, 0.8 + 0.2 * k, words)
        for name, chart in charts.items():
            head = 0.3 * bool(name)
            sheet.word(MARGIN, top + 0.15, name, TEXT, weight="bold")
            if name:
                x = MARGIN + inches(name, TEXT, "bold") + 0.15
                sheet.note(x, top + 0.15, measure(chart.end, "s"), size=TEXT)
            draw_rows(sheet, top + head, deep[name] - head, chart, end, kinds, squeeze, arrows)
            top += deep[name]
            if chart.memory:
                rank, held = chart.memory
                words = f"memory of rank {rank}"
                sheet.word(MARGIN, top + 0.21, words, weight="bold")
                x = MARGIN + inches(words, SMALL, "bold") + 0.22
                sheet.key(x, top + 0.21, categories(held))
                ax, scale = time_axes(sheet, top + 0.42, 1.05, end)
                stack(ax, held, min(end, chart.end), scale, most)
                top += MEMORY
            top += 0.12
        for ax in sheet.fig.axes[:-1]:
            ax.tick_params(labelbottom=False)
            ax.spines["bottom"].set_visible(False)
        sheet.fig.axes[-1].set_xlabel(f"time, {unit_of(end, TIME_UNITS)[1]}")
        shown = [f"  shown: {words}" for words in limits]
        return sheet.picture(title, *spent_text(charts, kinds), *shown)


def time_axes(sheet: Card, top: float, tall: float, end: float):
    """Axes across the card, and the seconds of their unit."""
    ax = sheet.axes(LEFT, top, WIDE, tall)
    scale = unit_of(end, TIME_UNITS)[0]
    ax.set_xlim(0, end / scale)
    ax.grid(axis="x")
    ax.spines["left"].set_visible(False)
    return ax, scale


def draw_rows(
    sheet: Card,
    top: float,
    tall: float,
    chart: Chart,
    end: float,
    kinds: dict,
    squeeze: float,
    arrows: bool,
) -> None:
    """The bars of each row, with names where they fit; what is below a pixel is a shade of how busy it was."""
    ax, scale = time_axes(sheet, top, tall, end)
    ax.set_ylim(tall, 0)
    inch = WIDE / end
    places, _ = chart.rows(squeeze)
    boxes = []
    faces = []
    for key, row in chart.bars.items():
        y = places[key]
        low = y + TALL[key[2]] * squeeze
        for start, stop, kind, name in row:
            wide = (stop - start) * inch
            # a hair between two bars; a message of no bytes shows too
            seen = max(wide - min(0.008, 0.2 * wide), 0.003 if wide else 0.012) / inch
            a, b = start / scale, (start + seen) / scale
            boxes.append([(a, y), (b, y), (b, low), (a, low)])
            faces.append(kinds[kind])
            if name and low - y > 0.17 and inches(name) + 0.08 < wide:
                # arrows cross the bars, not the names
                x = LEFT + (start + stop) / 2 * inch
                style = dict(ha="center", color=ink_on(kinds[kind]), halo=kinds[kind])
                sheet.word(x, top + (y + low) / 2, name, **style)
    bars = PolyCollection(boxes, facecolors=faces, linewidths=0, zorder=2)
    ax.add_collection(bars, autolim=False)
    middle = {key: y + TALL[key[2]] * squeeze / 2 for key, y in places.items()}
    if arrows:
        draw_arrows(ax, chart.messages, middle, scale)
    heights = defaultdict(list)
    lanes = {lane for _, lane, _ in places}
    for (rank, lane, _), y in middle.items():
        name = f"rank {rank}"
        if len(lanes) > 1 and lane != "main":
            name = f"lane {lane}" if lane.isdigit() else lane
        heights[rank, name].append(y)
    every = next(2**k for k in range(20) if len(heights) * 0.16 <= tall * 2**k)
    marked = list(heights.items())[::every]
    ax.set_yticks([sum(ys) / len(ys) for _, ys in marked], [name for (_, name), _ in marked])


def draw_arrows(ax, messages: Sequence[Message], middle: dict, scale: float) -> None:
    """An arrow from the middle of the sender's wire, at the start, to the receiver's, at arrival.

    middle: (rank, lane, "send" or "receive") → y of that row.  scale: seconds of a unit of the x axis.
    """
    ends = []
    for m in messages:
        tail = middle.get((m.src, m.lane, "send"))
        tip = middle.get((m.dst, m.lane, "receive"))
        if tail is not None and tip is not None:
            ends.append((m.start / scale, tail, (m.arrived - m.start) / scale, tip - tail))
    if ends:
        in_data = dict(angles="xy", scale_units="xy", scale=1)
        shape = dict(units="inches", width=0.011, headwidth=5.5, headlength=7, headaxislength=7)
        ax.quiver(*zip(*ends, strict=True), color=INK, alpha=0.8, zorder=3, **in_data, **shape)


def spent_text(charts: Mapping[str, Chart], kinds: dict[str, str]) -> Iterator[str]:
    """What each rank spent its time on, in words; of many ranks the least, the most and the mean."""
    for name, chart in charts.items():
        spent = {rank: dict.fromkeys(kinds, 0.0) for rank in chart.ranks}
        for (rank, *_), row in chart.bars.items():
            for start, stop, kind, _ in row:
                spent[rank][kind] += stop - start
        count = len(spent)
        head = f"{name}: " if name else ""
        yield f"{head}{count} rank{'s' * (count != 1)}, {measure(chart.end, 's')}"
        if count <= 8:
            for rank, times in spent.items():
                words = ", ".join(f"{kind} {measure(t, 's')}" for kind, t in times.items() if t)
                yield f"  rank {rank}: {words}"
        else:
            for kind in kinds:
                times = [each[kind] for each in spent.values()]
                low, high = measure(min(times), "s"), measure(max(times), "s")
                mean = measure(sum(times) / count, "s")
                spread = f"{low} to {high} a rank, {mean} on average"
                yield f"  {kind}: {f'{low} on each rank' if low == high else spread}"
        if chart.memory:
            rank, held = chart.memory
            when = measure(float(held.times[held.total.argmax()]), "s")
            yield f"  memory of rank {rank}: peak {held_words(held.at_peak)}, at {when}"


# ----------------------------------------------------------------------------------------------------------- stages
ACTIONS = {"F": "forward", "B": "backward", "I": "backward", "W": "weights", "U": "update"}

Noted = Sequence[Sequence[tuple[Action | str, float, float]]]


def stages(runs: Mapping[str, Simulation | Noted], *, title: str = "Stages") -> Picture:
    """Draw pipelines, `{"1F1B": run, …}`, on one axis of time; rank s is stage s.

    A run is a Simulation, or what its ranks noted: (action, start, end) in seconds, where an action is an `Action` or a
    word such as `F3`. One unit of a simulation's time is drawn as a second.
    Errors: ValueError for nothing to draw, and for an action that is not F, B, I, W or U.

    >>> from minidist.parallel.schedules import gpipe, lists, zb_h1
    >>> from minidist.parallel.simulate import simulate
    >>> from minidist.study import stages
    >>> runs = {"GPipe": simulate(lists(gpipe, 2, 2)), "ZB-H1": simulate(lists(zb_h1, 2, 2))}
    >>> stages(runs)
    Stages
    GPipe: 2 ranks, 9 s
      rank 0: forward 2 s, backward 4 s
      rank 1: forward 2 s, backward 4 s
    ZB-H1: 2 ranks, 7 s
      rank 0: forward 2 s, backward 2 s, weights 2 s
      rank 1: forward 2 s, backward 2 s, weights 2 s
    """
    return timeline({name: trace_of(run) for name, run in runs.items()}, title=title)


def trace_of(run: Simulation | Noted) -> Trace:
    """A pipeline's run as a trace whose spans are its actions."""
    if isinstance(run, Simulation):
        run = [[span[1:] for span in row] for row in run.spans]
    trace = Trace(len(run))
    for stage, row in enumerate(run):
        for action, start, end in row:
            word = str(action)
            if word[:1] not in ACTIONS:
                raise ValueError(
                    f"stage {stage} did {word!r}, and actions are {', '.join(ACTIONS)} with a number"
                )
            trace.spans.add(stage, "main", ACTIONS[word[0]], start, end, word)
    return trace


# ----------------------------------------------------------------------------------------------------------- viewer
SCRIPTS = ("data.js", "paint.js", "memory.js", "act.js")
MOST_MOMENTS = 6_000  # of memory, of all ranks together


def viewer(
    run: Results | Trace, *, title: str = "Timeline", ranks: Sequence[int] | None = None
) -> Viewer:
    """Look into a run: when each rank computed, waited, sent and received, and what its memory held meanwhile.

    Use it wherever a lesson shows a run whose messages should be read. It includes the still picture of `timeline`, and
    adds about 17 kB to a notebook. Use `timeline` where a glance is enough, and for what a viewer cannot do: comparing
    several traces on one axis of time.
    run: what `World.run` or `launch` returned, or its trace. ranks: only these, in this order. If there are more than
    20,000 messages or spans, the first ones are shown; a note above the picture says what is left out.
    Errors: ValueError for an unknown rank, an empty trace, a run that takes no time.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import broadcast_
    >>> from minidist.study import viewer
    >>> def program(comm):
    ...     broadcast_(comm, torch.ones(1000), algorithm="tree")
    >>> viewer(World(4).run(program), title="A broadcast")
    A broadcast
    4 ranks, 10.2 µs
      rank 0: send 160 ns
      rank 1: receive 80 ns
      rank 2: send 80 ns, receive 80 ns
      rank 3: receive 80 ns
    """
    return Viewer(run.trace if isinstance(run, Results) else run, title, ranks)


class Viewer(Framed):
    """An interactive page about a run: `page` (HTML), `picture` (a still one), `text`, `save(path)`.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.study import viewer
    >>> def program(comm):
    ...     comm.sendrecv(torch.ones(10), (comm.rank + 1) % 4, torch.empty(10), (comm.rank - 1) % 4)
    >>> made = viewer(World(4).run(program), ranks=[0, 1])
    >>> made.page.startswith("<!DOCTYPE html>"), made.picture.png[1:4]
    (True, b'PNG')
    """

    def __init__(self, trace: Trace, title: str, ranks: Sequence[int] | None):
        self.title = title
        self.chart = Chart(trace, ranks)
        self.data = columns(self.chart)
        held = {r: trace.memory[r] for r in self.chart.ranks if len(trace.memory.get(r, ()))}
        self.data["memory"], cut = memory_columns(held, self.data["tick"])
        self.limits = self.chart.limits + cut
        rows = sum(34 if lane else 52 for _, lane in self.data["rows"])
        memory = 180 * (self.data["memory"] is not None)
        height = 150 + min(560, max(170, rows)) + memory + 26 * len(self.limits)
        self.heights = (height, height)

    @cached_property
    def picture(self) -> Picture:
        """The same, drawn once and still, with an arrow for each message where they can be told apart."""
        count = len(self.chart.messages)
        few = count <= MOST_ARROWS
        limits = [f"no arrows: {count:,} messages, and {MOST_ARROWS} can be told apart"] * (not few)
        return draw(self.title, {"": self.chart}, self.chart.limits + limits, arrows=few)

    @cached_property
    def page(self) -> str:
        """The whole page: an HTML document that needs nothing else."""
        note = '<p class="limits" role="note">Shown: {}</p>\n'
        return document(
            "viewer",
            SCRIPTS,
            self.data,
            title=self.title or "Timeline",
            summary=self.text,
            limits="".join(note.format(escape(words)) for words in self.limits),
        )


# --------------------------------------------------------------------------------------------- what the page is given
# Columns of whole numbers, small enough for a notebook. Times are counted in ticks of a nanosecond (of less, where a run
# is over in microseconds). A start is the distance from the row before, an end the distance from its start, so most
# numbers have few digits.


def tick_of(end: float) -> float:
    """A nanosecond, or the power of ten below it that cuts `end` seconds into 100,000 ticks or more."""
    return 10.0 ** min(-9, math.floor(math.log10(end)) - 5)


def differences(values: Sequence[int]) -> list[int]:
    """Each value less the one before it, the first less 0."""
    return [b - a for a, b in pairwise([0, *values])]


def columns(chart: Chart) -> dict:
    """The tables of messages and spans with their words: what data.js reads."""
    messages, spans = chart.messages, chart.spans
    tick = tick_of(chart.end)
    at = lambda seconds: round(seconds / tick)
    lane = _numbers(["main", *sorted({m.lane for m in messages} | {s.lane for s in spans})])
    word = _numbers(["", *(m.label or "" for m in messages), *(s.name for s in spans)])
    colors = kinds_of({s.kind for s in spans} | ({"send", "receive"} if messages else set()))
    kind = _numbers(colors)
    busy = {(s.rank, s.lane) for s in spans} | {(rank, "main") for rank in chart.ranks}
    busy |= {(rank, m.lane) for m in messages for rank in (m.src, m.dst)}
    return {
        "messages": {
            "count": len(messages),
            "src": [m.src for m in messages],
            "dst": [m.dst for m in messages],
            "bytes": [m.nbytes for m in messages],
            "start": differences([at(m.start) for m in messages]),
            "busy": [at(m.sent) - at(m.start) for m in messages],
            "flight": [at(m.arrived) - at(m.sent) for m in messages],
            "word": [word[m.label or ""] for m in messages],
            "lane": [lane[m.lane] for m in messages],
        },
        "spans": {
            "count": len(spans),
            "rank": [s.rank for s in spans],
            "lane": [lane[s.lane] for s in spans],
            "kind": [kind[s.kind] for s in spans],
            "start": differences([at(s.start) for s in spans]),
            "long": [at(s.end) - at(s.start) for s in spans],
            "name": [word[s.name] for s in spans],
        },
        "tick": tick,
        "unit": unit_of(chart.end / 10, TIME_UNITS)[::-1],  # one for all, with three decimals
        "start": 0,
        "end": at(chart.end),
        "ranks": chart.ranks,
        "rows": [
            [rank, lane[name]] for rank, name in product(chart.ranks, lane) if (rank, name) in busy
        ],
        "lanes": list(lane),
        "words": list(word),
        "kinds": [[name, color, ink_on(color)] for name, color in colors.items()],
    }


def _numbers(names: Iterable[str]) -> dict[str, int]:
    """Each of the names with its number."""
    return {name: i for i, name in enumerate(dict.fromkeys(names))}


def memory_columns(lines: dict[int, Timeline], tick: float) -> tuple[dict | None, list[str]]:
    """Each rank's moments of memory: when, and the live bytes of each category.

    Above 6,000 moments of all ranks together the telling ones are kept, which is said.
    """
    if not lines:
        return None, []
    names = [name for name in CATEGORIES if any(held.live[name].any() for held in lines.values())]
    series: dict[int, dict[str, Any]] = {}
    for rank, held in lines.items():
        moments = telling(held.total.tolist(), MOST_MOMENTS // len(lines))
        ticks = [round(time / tick) for time in held.times[moments].tolist()]
        series[rank] = {
            "count": len(moments),
            "peak": held.peak,
            "time": differences(ticks),
            "live": [differences(held.live[name][moments].tolist()) for name in names],
        }
    total = sum(len(held) for held in lines.values())
    shown = sum(each["count"] for each in series.values())
    limits = [f"{shown:,} of {total:,} moments of memory, the highest among them"]
    categories = [[name, MEANING[name]] for name in names]
    rank = max(lines, key=lambda rank: lines[rank].peak)
    memory = {"categories": categories, "rank": rank, "series": series}
    return memory, limits * (shown < total)


def telling(total: list[int], most: int) -> list[int]:
    """Of the moments with these sums about `most`, or all: of so many equal parts the highest and the last."""
    if len(total) <= most:
        return list(range(len(total)))
    parts = max(1, most // 2)
    edges = [len(total) * k // parts for k in range(parts + 1)]
    chosen = set()
    for first, stop in pairwise(edges):
        chosen |= {max(range(first, stop), key=total.__getitem__), stop - 1}
    return sorted(chosen)
