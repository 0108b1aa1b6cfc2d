"""Who did what and when: the Gantt chart of a trace, its messages as arrows, and memory under it.

Several traces share one time axis, so that a run before and a run after can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from minidist.comm.trace import Message, Trace
from minidist.study import line
from minidist.study.areas import categories, highest, legend, peak_words, stack, swatches
from minidist.study.picture import TIME_UNITS, Picture, axes, inches, measure, sheet, unit_of
from minidist.study.rows import (
    Bars,
    Row,
    bars_of,
    draw_arrows,
    draw_row,
    kinds_of,
    known_ranks,
    rows_of,
)

MOST_RANKS = 256
MOST_LISTED = 8
MOST_ARROWS = 300
# inches: between two ranks, two lanes of one, …
BETWEEN = 0.1
LANES = 0.04
LABELS = 0.85
HEAD = 0.3
FOOT = 0.5
MOST_INCHES = 7.0
MEMORY, ABOVE = 1.05, 0.42  # inches of the areas of memory, and of the words above them


class Chart(NamedTuple):
    """One trace as it is drawn. memory: (rank, its Timeline) or None; arrows: the messages to draw as such."""

    bars: Bars
    order: list[int]
    rows: list[Row]
    arrows: Sequence[Message] = ()
    memory: tuple | None = None


def timeline(
    trace: Trace | Mapping[str, Trace],
    *,
    title: str = "Timeline",
    ranks: Sequence[int] | None = None,
    arrows: bool = False,
    memory: bool | int = True,
) -> Picture:
    """Draw when each rank computed, waited, sent and received; `{"naive": t1, "ring": t2}` compares traces.

    ranks: only these ranks, in this order. A row of more than 100 bars is shaded by how busy it was.
    arrows: draw each message from its sender's wire to its receiver's, at most 300.
    memory: under a trace that has some, the live bytes of the rank with the highest peak; or of this rank;
    False: of none.
    Errors: ValueError for no trace, an empty one, an unknown rank, more than 256 ranks or 300 arrows.
    """
    traces = dict(trace) if isinstance(trace, Mapping) else {"": trace}
    if not traces:
        raise ValueError("timeline needs at least one trace")
    charts = {
        str(name): _chart_of(str(name), t, ranks, arrows, memory) for name, t in traces.items()
    }
    end = max(_end(chart.bars) for chart in charts.values())
    if end <= 0:
        raise ValueError(
            f"every event of the trace is at {measure(end, 's')}: there is no time to draw"
        )
    return picture(title, charts, 0.0, end)


def _chart_of(
    name: str, trace: Trace, ranks: Sequence[int] | None, arrows: bool, memory: bool | int
) -> Chart:
    order = known_ranks(trace, ranks)
    shown = set(order)
    if len(shown) > MOST_RANKS:
        raise ValueError(
            f"timeline draws at most {MOST_RANKS} ranks, and there are {len(shown)}: choose ranks=[…]"
        )
    bars = bars_of(trace, trace.spans, shown)
    if not bars:
        raise ValueError(f"trace {name!r} has no message and no span of ranks {sorted(shown)}")
    among = [m for m in trace if m.src in shown and m.dst in shown] if arrows else []
    if len(among) > MOST_ARROWS:
        raise ValueError(
            f"timeline draws at most {MOST_ARROWS} arrows, and there are {len(among):,}: choose ranks=[…]"
        )
    return Chart(bars, order, rows_of(bars, order), among, _memory_of(trace, order, memory))


def _memory_of(trace: Trace, order: list[int], memory: bool | int) -> tuple | None:
    lines = {r: line for r, line in trace.memory.items() if len(line.times)}
    if memory is True or memory is False:
        rank = highest(lines, order) if memory else None
        return None if rank is None else (rank, lines[rank])
    if memory not in lines:
        raise ValueError(
            f"rank {memory} has no memory in this trace; those that have: {sorted(lines)}"
        )
    return memory, lines[memory]


def picture(
    title: str, charts: dict[str, Chart], begin: float, end: float, limits: Sequence[str] = ()
) -> Picture:
    """Draw the charts under each other from `begin` to `end` seconds. limits: what is left out, in words."""
    kinds = kinds_of(
        {b[2] for chart in charts.values() for row in chart.bars.values() for b in row}
    )
    squeeze = min(1.0, MOST_INCHES / sum(_height(chart.rows, 1.0) for chart in charts.values()))
    below = {name: (MEMORY + ABOVE) * (chart.memory is not None) for name, chart in charts.items()}
    heads = {name: HEAD * bool(name) for name in charts}
    tall = sum(_height(c.rows, squeeze) + heads[n] + below[n] for n, c in charts.items()) + 0.12 * (
        len(charts) - 1
    )
    most = max((c.memory[1].peak for c in charts.values() if c.memory), default=0)
    top = 0.8 + 0.2 * len(limits)
    with sheet(line.WIDTH, top + 0.05 + tall + FOOT, title) as fig:
        swatches(fig, line.MARGIN, fig.get_figheight() - 0.58, kinds)
        for k, words in enumerate(limits):
            style = dict(
                transform=fig.dpi_scale_trans, va="center", fontsize=line.SMALL, color=line.MUTED
            )
            fig.text(line.MARGIN, fig.get_figheight() - 0.8 - 0.2 * k, words, **style)
        for name, chart in charts.items():
            deep = _height(chart.rows, squeeze)
            _chart(fig, top + heads[name], deep, chart, (begin, end), kinds, squeeze)
            if name:
                _heading(fig, top + HEAD / 2, name, chart.bars)
            top += heads[name] + deep
            if chart.memory:
                _memory(fig, top, chart, (begin, end), most)
            top += below[name] + 0.12
        _time_axis(fig, end)
        return Picture(fig, _text(title, charts, kinds, limits))


def _end(bars: Bars) -> float:
    return max(b[1] for row in bars.values() for b in row)


def _height(rows: list[Row], squeeze: float) -> float:
    ranks, lanes = len({r for r, *_ in rows}), len({row[:2] for row in rows})
    return squeeze * (
        sum(tall for *_, tall in rows) + (ranks + 1) * BETWEEN + (lanes - ranks) * LANES
    )


def _axes(fig: Figure, top: float, deep: float, times: tuple[float, float]):
    """Axes across the card, from the first to the last of `times`, with the inches of a second and its unit."""
    width = line.WIDTH - 2 * line.MARGIN - LABELS - 0.15
    scale, _ = unit_of(times[1], TIME_UNITS)
    ax = axes(fig, line.MARGIN + LABELS, top, width, deep)
    ax.set_xlim(times[0] / scale, times[1] / scale)
    ax.grid(axis="x")
    ax.spines["left"].set_visible(False)
    return ax, (width / (times[1] - times[0]), scale)


def _chart(
    fig: Figure, top, deep, chart: Chart, times, kinds: dict[str, str], squeeze: float
) -> None:
    ax, inch = _axes(fig, top, deep, times)
    ax.set_ylim(deep, 0)
    y = 0.0
    edges = {}
    middle = {}
    last = (None, "")
    lanes = len({lane for _, lane, *_ in chart.rows})
    for r, lane, row, tall in chart.rows:
        y += squeeze * (BETWEEN if r != last[0] else LANES * (lane != last[1]))
        edges.setdefault((r, lane) if lanes > 1 else (r, ""), []).extend((y, y + squeeze * tall))
        middle[r, lane, row] = y + squeeze * tall / 2
        draw_row(ax, chart.bars.get((r, lane, row), []), y, squeeze * tall, kinds, inch)
        y, last = y + squeeze * tall, (r, lane)
    draw_arrows(ax, chart.arrows, middle, inch)
    places = [((min(ys) + max(ys)) / 2, r, lane) for (r, lane), ys in edges.items()]
    every = next(2**k for k in range(20) if len(places) * 0.16 <= deep * 2**k)
    ax.set_yticks(
        [p for p, *_ in places[::every]], [_name(r, lane) for _, r, lane in places[::every]]
    )
    ax.tick_params(length=0)


def _name(rank: int, lane: str) -> str:
    if lane in ("", "main"):
        return f"rank {rank}"
    return f"lane {lane}" if lane.isdigit() else lane


def _memory(fig: Figure, top: float, chart: Chart, times: tuple[float, float], most: float) -> None:
    rank, held = chart.memory
    legend(fig, fig.get_figheight() - top - ABOVE / 2, f"memory of rank {rank}", categories(held))
    ax, (_, scale) = _axes(fig, top + ABOVE, MEMORY, times)
    stack(ax, held, (times[0], min(times[1], _end(chart.bars))), scale, most)
    ax.tick_params(length=0)


def _heading(fig: Figure, below_top: float, name: str, bars: Bars) -> None:
    style = dict(transform=fig.dpi_scale_trans, va="center")
    y, end = fig.get_figheight() - below_top, _end(bars)
    fig.text(line.MARGIN, y, name, fontweight="bold", **style)
    x = line.MARGIN + inches(name, line.TEXT, "bold") + 0.15
    fig.text(x, y, measure(end, "s"), color=line.MUTED, **style)


def _time_axis(fig: Figure, end: float) -> None:
    """Only the lowest chart names the times; the grid carries them up."""
    for ax in fig.axes[:-1]:
        ax.tick_params(labelbottom=False)
        ax.spines["bottom"].set_visible(False)
    fig.axes[-1].set_xlabel(f"time, {unit_of(end, TIME_UNITS)[1]}", color=line.MUTED)


def _text(
    title: str, charts: dict[str, Chart], kinds: dict[str, str], limits: Sequence[str]
) -> str:
    out = [title] * bool(title)
    for name, chart in charts.items():
        ranks, end = chart.order, _end(chart.bars)
        spent = {r: dict.fromkeys(kinds, 0.0) for r in ranks}
        for (r, *_), row in chart.bars.items():
            for start, stop, kind, _ in row:
                spent[r][kind] += stop - start
        out.append(
            (f"{name}: " if name else "")
            + f"{len(ranks)} rank{'s' * (len(ranks) != 1)}, {measure(end, 's')}"
        )
        if len(ranks) <= MOST_LISTED:
            out += [
                f"  rank {r}: " + ", ".join(_spent(k, t) for k, t in spent[r].items() if t)
                for r in ranks
            ]
        for kind in kinds if len(ranks) > MOST_LISTED else []:
            times = [spent[r][kind] for r in ranks]
            low, mean, high = (
                measure(t, "s") for t in (min(times), sum(times) / len(times), max(times))
            )
            out.append(
                f"  {kind}: "
                + (
                    f"{low} on each rank"
                    if low == high
                    else f"{low} to {high} a rank, {mean} on average"
                )
            )
        if chart.memory:
            out.append(f"  {peak_words(*chart.memory)}")
    return "\n".join(out + [f"  shown: {words}" for words in limits])


def _spent(kind: str, seconds: float) -> str:
    return f"{kind} {measure(seconds, 's')}"
