"""Who did what and when: the Gantt chart of a trace.

Each rank has a bar for what it did (its spans), and under it two thin ones for its wires: the sender's
is busy from a message's start until it is sent, the receiver's for as long before the message has
arrived. Lanes of `stream` have bars of their own. Several traces share one time axis.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minidist.comm.trace import Trace
from minidist.study import line
from minidist.study.picture import TIME_UNITS, Picture, axes, inches, measure, sheet, unit_of

MOST_RANKS, MOST_BARS, MOST_LISTED, SLICES = 256, 100, 8, 720
TALL = {"do": 0.26, "send": 0.1, "receive": 0.1}  # inches of a bar, where there is room
BETWEEN, LABELS, HEAD, FOOT = 0.1, 0.85, 0.3, 0.5
MOST_INCHES = 7.0

Bars = dict[tuple[int, str, str], list[tuple[float, float, str, str]]]  # (rank, lane, row) → start, end, kind, name


def timeline(
    trace: Trace | Mapping[str, Trace],
    *,
    title: str = "Timeline",
    ranks: Sequence[int] | None = None,
) -> Picture:
    """Draw when each rank computed, waited, sent and received; `{"naive": t1, "ring": t2}` compares traces.

    ranks: only these ranks, in this order. A row of more than 100 bars is shaded by how busy it was.
    Errors: ValueError for no trace, an empty one, an unknown rank, more than 256 ranks.
    """
    traces = dict(trace) if isinstance(trace, Mapping) else {"": trace}
    if not traces:
        raise ValueError("timeline needs at least one trace")
    charts = {str(name): _bars(str(name), t, ranks) for name, t in traces.items()}
    order = {name: list(range(t.n)) if ranks is None else list(ranks) for name, t in traces.items()}
    end = max(b[1] for bars in charts.values() for row in bars.values() for b in row)
    if end <= 0:
        raise ValueError(f"every event of the trace is at {measure(end, 's')}: there is no time to draw")
    kinds = _kinds(charts)
    rows = {name: _rows(bars, order[name]) for name, bars in charts.items()}
    squeeze = min(1.0, MOST_INCHES / sum(_height(r, 1.0) for r in rows.values()))
    heads = {name: HEAD * bool(name) for name in charts}
    tall = sum(_height(r, squeeze) + heads[name] for name, r in rows.items()) + 0.12 * (len(rows) - 1)
    with sheet(line.WIDTH, 0.85 + tall + FOOT, title) as fig:
        _legend(fig, kinds)
        top = 0.8
        for name, bars in charts.items():
            deep = _height(rows[name], squeeze)
            _chart(fig, top + heads[name], deep, bars, rows[name], order[name], end, kinds, squeeze)
            if name:
                _heading(fig, top + HEAD / 2, name, bars)
            top += heads[name] + deep + 0.12
        _time_axis(fig, end)
        return Picture(fig, _text(title, charts, order, kinds))


def _bars(name: str, trace: Trace, ranks: Sequence[int] | None) -> Bars:
    shown = set(range(trace.n) if ranks is None else ranks)
    if len(shown) > MOST_RANKS:
        raise ValueError(f"timeline draws at most {MOST_RANKS} ranks, and there are {len(shown)}: choose ranks=[…]")
    if not shown <= set(range(trace.n)):
        raise ValueError(f"ranks {sorted(shown)} are not all in this trace of {trace.n} ranks, 0 to {trace.n - 1}")
    bars: Bars = defaultdict(list)
    for s in trace.spans:
        if s.rank in shown:
            bars[s.rank, s.lane, "do"].append((s.start, s.end, s.kind, s.name))
    for m in trace:
        busy = m.sent - m.start
        if m.src in shown:
            bars[m.src, m.lane, "send"].append((m.start, m.sent, "send", ""))
        if m.dst in shown:
            bars[m.dst, m.lane, "receive"].append((m.arrived - busy, m.arrived, "receive", ""))
    if not bars:
        raise ValueError(f"trace {name!r} has no message and no span of ranks {sorted(shown)}")
    return {key: sorted(row) for key, row in bars.items()}


def _kinds(charts: dict[str, Bars]) -> dict[str, str]:
    """The colour of each kind that occurs, in the order of the legend."""
    found = {b[2] for bars in charts.values() for row in bars.values() for b in row}
    named = sorted(found - set(line.KINDS))
    palette = {kind: line.OTHER_KINDS[i % len(line.OTHER_KINDS)] for i, kind in enumerate(named)} | line.KINDS
    return {kind: palette[kind] for kind in [*named, *line.KINDS] if kind in found}


def _rows(bars: Bars, order: list[int]) -> list[tuple[int, str, str, float]]:
    """The rows from the top, the same for each rank: rank, lane, row, and its inches."""
    lanes = sorted({(lane != "main", lane) for _, lane, _ in bars})
    some = [(lane, row) for _, lane in lanes for row in TALL if any(k[1:] == (lane, row) for k in bars)]
    return [(r, lane, row, TALL[row]) for r in order for lane, row in some]


def _height(rows: list, squeeze: float) -> float:
    ranks = len({r for r, *_ in rows})
    return squeeze * (sum(tall for *_, tall in rows) + (ranks + 1) * BETWEEN)


def _chart(fig: Figure, top, deep, bars: Bars, rows, order, end: float, kinds: dict[str, str], squeeze: float) -> None:
    width = line.WIDTH - 2 * line.MARGIN - LABELS - 0.15
    scale, _ = unit_of(end, TIME_UNITS)
    ax = axes(fig, line.MARGIN + LABELS, top, width, deep)
    ax.set_xlim(0, end / scale)
    ax.set_ylim(deep, 0)
    ax.grid(axis="x")
    ax.spines["left"].set_visible(False)
    y, middle, last = 0.0, {}, None
    lanes = len({lane for _, lane, *_ in rows})
    for r, lane, row, tall in rows:
        y += squeeze * BETWEEN * (r != last)
        middle.setdefault((r, lane) if lanes > 1 else (r, ""), []).extend((y, y + squeeze * tall))
        _row(ax, bars.get((r, lane, row), []), y, squeeze * tall, kinds, (width / end, scale))
        y, last = y + squeeze * tall, r
    places = [((min(ys) + max(ys)) / 2, r, lane) for (r, lane), ys in middle.items()]
    every = next(2**k for k in range(20) if len(places) * 0.16 <= deep * 2**k)
    ax.set_yticks([p for p, *_ in places[::every]], [_name(r, lane) for _, r, lane in places[::every]])
    ax.tick_params(length=0)


def _name(rank: int, lane: str) -> str:
    if lane in ("", "main"):
        return f"rank {rank}"
    return f"lane {lane}" if lane.isdigit() else lane


def _row(ax, bars: list, y: float, tall: float, kinds: dict[str, str], inch: tuple[float, float]) -> None:
    """The bars of one row, with names where they fit; above 100 of them, shades of how busy it was."""
    per_second, scale = inch
    if len(bars) > MOST_BARS:
        end = ax.get_xlim()[1]
        shades = _shades(bars, kinds, end * scale)
        ax.imshow(shades, extent=(0, end, y + tall, y), aspect="auto", interpolation="nearest", zorder=2)
        return
    boxes, faces = [], []
    for start, stop, kind, name in bars:
        seen = max((stop - start) * per_second - 0.008, 0.012) / per_second  # a message of no bytes shows too
        left, right = start / scale, (start + seen) / scale
        boxes.append([(left, y), (right, y), (right, y + tall), (left, y + tall)])
        faces.append(kinds[kind])
        if name and tall > 0.17 and inches(name, line.SMALL) + 0.08 < seen * per_second:
            style = dict(ha="center", va="center", fontsize=line.SMALL, color=line.ink_on(kinds[kind]))
            ax.text((left + right) / 2, y + tall / 2, name, **style)
    ax.add_collection(PolyCollection(boxes, facecolors=faces, linewidths=0, zorder=2), autolim=False)


def _shades(bars: list, kinds: dict[str, str], end: float) -> np.ndarray:
    """RGB of the share of each slice of the time that was busy; 0.4 of a colour is the least that shows."""
    card = np.array(to_rgb(line.CARD))
    out, edges = np.tile(card, (1, SLICES, 1)), np.linspace(0, end, SLICES + 1)
    for kind, color in kinds.items():
        times = np.array([b[:2] for b in bars if b[2] == kind]).reshape(-1, 2)
        total = np.repeat(np.cumsum(times[:, 1] - times[:, 0]), 2)
        if len(times):
            busy = np.diff(np.interp(edges, times.ravel(), np.concatenate([[0], total[:-1]]))) * SLICES / end
            amount = np.where(busy > 1e-9, 0.4 + 0.6 * busy, 0)[:, None]
            out += amount * (np.array(to_rgb(color)) - card)
    return np.clip(out, 0, 1)


def _legend(fig: Figure, kinds: dict[str, str]) -> None:
    x, y = line.MARGIN, fig.get_figheight() - 0.58
    for kind, color in kinds.items():
        shape = dict(transform=fig.dpi_scale_trans, facecolor=color, edgecolor="none")
        fig.add_artist(Rectangle((x, y - 0.055), 0.2, 0.11, **shape))
        fig.text(x + 0.26, y - 0.005, kind, transform=fig.dpi_scale_trans, va="center", fontsize=line.SMALL)
        x += 0.5 + inches(kind, line.SMALL)


def _heading(fig: Figure, below_top: float, name: str, bars: Bars) -> None:
    style = dict(transform=fig.dpi_scale_trans, va="center")
    y, end = fig.get_figheight() - below_top, max(b[1] for row in bars.values() for b in row)
    fig.text(line.MARGIN, y, name, fontweight="bold", **style)
    x = line.MARGIN + inches(name, line.TEXT, "bold") + 0.15
    fig.text(x, y, measure(end, "s"), color=line.MUTED, **style)


def _time_axis(fig: Figure, end: float) -> None:
    """Only the lowest chart names the times; the grid carries them up."""
    for ax in fig.axes[:-1]:
        ax.tick_params(labelbottom=False)
        ax.spines["bottom"].set_visible(False)
    fig.axes[-1].set_xlabel(f"time, {unit_of(end, TIME_UNITS)[1]}", color=line.MUTED)


def _text(title: str, charts: dict[str, Bars], order: dict[str, list[int]], kinds: dict[str, str]) -> str:
    out = [title] * bool(title)
    for name, bars in charts.items():
        ranks, end = order[name], max(b[1] for row in bars.values() for b in row)
        spent = {r: dict.fromkeys(kinds, 0.0) for r in ranks}
        for (r, *_), row in bars.items():
            for start, stop, kind, _ in row:
                spent[r][kind] += stop - start
        out.append((f"{name}: " if name else "") + f"{len(ranks)} rank{'s' * (len(ranks) != 1)}, {measure(end, 's')}")
        if len(ranks) <= MOST_LISTED:
            out += [f"  rank {r}: " + ", ".join(_spent(k, t) for k, t in spent[r].items() if t) for r in ranks]
        for kind in kinds if len(ranks) > MOST_LISTED else []:
            times = [spent[r][kind] for r in ranks]
            low, mean, high = (measure(t, "s") for t in (min(times), sum(times) / len(times), max(times)))
            out.append(
                f"  {kind}: " + (f"{low} on each rank" if low == high else f"{low} to {high} a rank, {mean} on average")
            )
    return "\n".join(out)


def _spent(kind: str, seconds: float) -> str:
    return f"{kind} {measure(seconds, 's')}"
