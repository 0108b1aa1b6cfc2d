"""Numbers as pictures and tables: curves, bars, live memory over time, rows and columns.

curves            predicted lines with measured points on them; each name stands where its line ends
bars, stacked     a few numbers; each a sum of parts
memory_timeline   live bytes by category: the height of a moment is what was held then
table             rows and columns, as HTML that follows the notebook's theme
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from minidist.comm.trace import Timeline
from minidist.study.picture import (
    BLUE,
    BYTE_UNITS,
    CARD,
    DASHED,
    EDGE,
    INK,
    MARGIN,
    MEANING,
    TEXT,
    TIME_UNITS,
    VERMILION,
    WIDTH,
    Card,
    Picture,
    card,
    check_time,
    colors,
    inches,
    measure,
    mix,
    room,
    short,
    unit_of,
)

# ----------------------------------------------------------------------------------------------------------- curves
DASHES = ("-", DASHED, (0, (1.5, 1.5)), (0, (5, 2, 1.5, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P")
MOST_LISTED = 12
LEAST_TICKS = 3
TALL = 2.45  # inches of the axes
APART = 0.19  # inches between two names

Curve = tuple[Sequence[float], Sequence[float]]


def curves(
    lines: Mapping[str, Curve],
    *,
    points: Mapping[str, Curve] | None = None,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "",
    xunit: str | None = None,
    yunit: str | None = None,
    logx: bool = False,
    logy: bool = False,
    words: str = "",
) -> Picture:
    """Draw predicted `lines` and measured `points`, each `{"name": (x, y)}`, on one plot.

    Points with the name of a line take its colour. xunit, yunit: "s" and "B" take prefixes (µs, kB), any other unit
    follows the numbers. words: a description that replaces the values in the picture's text, for training losses that
    differ between processors because of rounding.
    Errors: ValueError for nothing to draw, x and y of different lengths, an empty or infinite curve, and a value that
    is not above 0 on a logarithmic axis.

    >>> from minidist.study import curves
    >>> n = [2, 4, 8]
    >>> lines = {"ring": (n, [2, 6, 14]), "tree": (n, [2, 4, 6])}
    >>> curves(lines, points={"ring": ([4], [6])}, xlabel="ranks", ylabel="steps", logx=True)
    steps against ranks
      line ring: 2: 2; 4: 6; 8: 14
      line tree: 2: 2; 4: 4; 8: 6
      points ring: 4: 6
    """
    lines = {name: _checked(name, curve, logx, logy) for name, curve in lines.items()}
    points = {name: _checked(name, curve, logx, logy) for name, curve in (points or {}).items()}
    styles = colors([*lines, *points])
    room("curves", len(styles), 24)
    shared = "points: run" if lines.keys() & points.keys() else ""
    right = max(map(inches, [*styles, shared])) + 0.62
    top = 0.82 if title else 0.5
    left = MARGIN + 0.75
    tall = max(TALL, APART * len(styles))
    with card(WIDTH, top + tall + 0.6, title) as sheet:
        ax = sheet.axes(left, top, WIDTH - left - MARGIN - right, tall)
        ax.set(xscale="log" if logx else "linear", yscale="log" if logy else "linear")
        for axis, unit in ((ax.xaxis, xunit), (ax.yaxis, yunit)):
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(FuncFormatter(lambda v, _, unit=unit: measure(v, unit)))
        ends = {}
        for i, (name, color) in enumerate(styles.items()):
            line = dict(color=color, linestyle=DASHES[i % 4] if name in lines else "none")
            mark = dict(marker=MARKERS[i % 6], markersize=6.5, markeredgewidth=1.6, zorder=3)
            mark |= dict(color=color, markerfacecolor=CARD)
            if name in lines:
                ax.plot(*lines[name], **line)
            if name in points:
                ax.plot(*points[name], **mark | {"linestyle": "none"})
            x, y = lines.get(name) or points[name]
            ends[name] = (x[-1], y[-1]), line | (mark if name in points else {})
        drawn = [*lines.values(), *points.values()]
        _whole_ticks(ax, drawn)
        for k, (axis, unit) in enumerate(((ax.xaxis, xunit), (ax.yaxis, yunit))):
            if axis.get_scale() == "log":
                _log_ticks(axis, {value for curve in drawn for value in curve[k]}, unit)
        ax.grid(True)
        ax.set_xlabel(xlabel)
        sheet.note(MARGIN, top - 0.16, ylabel)
        _names(sheet, ax, ends, shared)
        text = [f"{ylabel or 'y'} against {xlabel or 'x'}"]
        for kind, named in (("line", lines), ("points", points)):
            for name, curve in named.items():
                values = "" if words else ": " + _listed(*curve, xunit, yunit)
                text.append(f"  {kind} {name}{values}")
        return sheet.picture(title, *text, f"  {words}" if words else "")


def _checked(name: str, curve: Curve, logx: bool, logy: bool) -> tuple[list, list]:
    """The curve as two lists of Python's numbers."""
    x, y = ([getattr(v, "item", lambda v=v: v)() for v in values] for values in curve)
    if len(x) != len(y) or not x:
        raise ValueError(
            f"curve {name!r} needs as many x as y, and at least one: it has {len(x)} x and {len(y)} y"
        )
    for values, axis, log in ((x, "x", logx), (y, "y", logy)):
        for v in values:
            if not math.isfinite(v) or (log and v <= 0):
                where = f"the {'logarithmic ' * log}{axis} axis"
                raise ValueError(f"curve {name!r} has the value {v}, which has no place on {where}")
    return x, y


def _whole_ticks(ax, curves: list) -> None:
    """Where only whole numbers are (ranks, stages, steps), only whole numbers are marked."""
    for k, axis in enumerate((ax.xaxis, ax.yaxis)):
        whole = all(type(v) is int for curve in curves for v in curve[k])
        if axis.get_scale() == "linear" and whole:
            axis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True))


def _log_ticks(axis, values: set, unit: str | None) -> None:
    """Below three decades a logarithmic axis is marked at 1, 2 and 5; where these are too few, as a linear one.

    Counts that are powers of two (of ranks, of micro-batches) are marked themselves.
    """
    low, high = axis.get_view_interval()
    if high / low >= 1000:
        return
    powers = all(type(v) is int and v.bit_count() == 1 for v in values) and unit != "B"
    if powers and len(values) >= LEAST_TICKS:
        axis.set_major_locator(FixedLocator(sorted(values)))
        return
    axis.set_major_locator(LogLocator(10, (1, 2, 5), numticks=12))
    marked = [tick for tick in axis.get_majorticklocs() if low <= tick <= high]
    if len(marked) < LEAST_TICKS:
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))


def _names(sheet: Card, ax, ends: dict[str, tuple], note: str) -> None:
    """Each name beside a piece of its line, as high as the line ends, or as near as there is room."""
    ax.autoscale_view()
    to_card = ax.transData + sheet.place.inverted()
    wanted = {name: float(to_card.transform(end)[1]) for name, (end, _) in ends.items()}
    order = sorted(ends, key=wanted.__getitem__)
    box = ax.get_position()
    top = sheet.height * (1 - box.y1)
    places = apart([wanted[name] for name in order], top + 0.02, sheet.height * (1 - box.y0))
    x = sheet.width * box.x1 + 0.1
    for name, y in zip(order, places, strict=True):
        sheet.line([x, x + 0.18, x + 0.36], [y] * 3, width=1.8, markevery=[1], **ends[name][1])
        sheet.word(x + 0.45, y, name)
    sheet.note(x, top - 0.16, note)


def apart(wanted: Sequence[float], low: float, high: float) -> list[float]:
    """Places from `low` to `high`, 0.19 from each other, near the `wanted` ones, which ascend."""
    places: list[float] = []
    for y in wanted:
        places.append(max(y, places[-1] + APART if places else low))
    for i in reversed(range(len(places))):
        places[i] = min(places[i], high - APART * (len(places) - 1 - i))
    return places


def _listed(x: Sequence[float], y: Sequence[float], xunit: str | None, yunit: str | None) -> str:
    """The values, twelve at most."""
    chosen = range(len(x))
    if len(x) > MOST_LISTED:
        chosen = [round(i * (len(x) - 1) / (MOST_LISTED - 1)) for i in range(MOST_LISTED)]
    return "; ".join(f"{measure(x[i], xunit)}: {measure(y[i], yunit)}" for i in chosen)


# ------------------------------------------------------------------------------------------------------------- bars
MOST_BARS = 24


def bars(
    values: Mapping[str, float],
    *,
    title: str = "",
    unit: str | None = None,
    target: float | None = None,
    note: str = "target",
) -> Picture:
    """Draw a few labelled numbers as horizontal bars, in the order given.

    unit: "s" and "B" take prefixes, any other follows the number. target: a value to compare with, drawn as a dashed
    line and called `note`.
    Errors: ValueError for no value, a negative or infinite one, or more than 24.

    >>> from minidist.study import bars
    >>> bars({"ring": 0.0021, "tree": 0.0035}, unit="s", target=0.002, note="bound", title="64 MB")
    64 MB
      ring: 2.1 ms
      tree: 3.5 ms
      (bound: 2 ms)
    """
    parts = {name: {name: value} for name, value in values.items()}
    faces = {name: MEANING.get(name, BLUE) for name in values}
    return _bars(title, parts, faces, unit, {}, {} if target is None else {note: target})


def stacked(
    bars: Mapping[str, Mapping[str, float]],
    *,
    title: str = "",
    unit: str | None = None,
    notes: Mapping[str, str] | None = None,
    target: float | None = None,
    note: str = "target",
) -> Picture:
    """Draw `{"name of a bar": {"name of a part": value}}` as horizontal bars, each followed by its sum.

    unit, target, note: as for `bars`.  notes: words to put after the sum of a bar.
    Errors: ValueError for no bar, more than 24, or a part that is negative or infinite.

    >>> from minidist.study import stacked
    >>> held = {"ZeRO 0": {"gradients": 2e9, "optimizer states": 12e9}}
    >>> held["ZeRO 1"] = {"gradients": 2e9, "optimizer states": 1.5e9}
    >>> stacked(held, unit="B", notes={"ZeRO 1": "on 8 ranks"})
      ZeRO 0: 14 GB (gradients 2 GB, optimizer states 12 GB)
      ZeRO 1: 3.5 GB  on 8 ranks (gradients 2 GB, optimizer states 1.5 GB)
    """
    bars = {name: {part: v for part, v in parts.items() if v} for name, parts in bars.items()}
    faces = colors(part for parts in bars.values() for part in parts)
    goal = {} if target is None else {note: target}
    return _bars(title, bars, faces, unit, notes or {}, goal)


def _bars(title, bars, faces, unit, notes, goal) -> Picture:
    """The parts of each bar behind each other, its sum and its note behind them, and a line at the goal."""
    room("bars", len(bars), MOST_BARS)
    for name, parts in [*bars.items(), *((name, {name: value}) for name, value in goal.items())]:
        for part, value in parts.items():
            if not math.isfinite(value) or value < 0:
                which = f"{part!r} of " * (part != name)
                raise ValueError(
                    f"{which}the bar {name!r} is {value}: bars are finite, not negative"
                )
    sums = {name: sum(parts.values()) for name, parts in bars.items()}
    words = {name: measure(total, unit) for name, total in sums.items()}
    for name, note in notes.items():
        words[name] += f"  {note}"
    keyed = not faces.keys() <= bars.keys()
    left = MARGIN + 0.2 + max(inches(name, TEXT) for name in bars)
    wide = WIDTH - MARGIN - 0.2 - left - max(inches(word, TEXT) for word in words.values())
    inch = wide / (max(*sums.values(), *goal.values(), 0) or 1)
    top = (0.62 if title else 0.25) + 0.28 * keyed
    end = top + 0.36 * len(bars)
    text = []
    with card(WIDTH, end + (0.42 if goal else 0.15), title) as sheet:
        if keyed:
            sheet.key(left, top - 0.16, faces)
        sheet.line([left, left], [top, end], EDGE)
        for name, value in goal.items():
            x = left + value * inch
            sheet.line([x, x], [top, end], VERMILION, 1.4, linestyle=DASHED)
            side = "right" if value * inch > wide / 2 else "left"
            sheet.note(x, end + 0.12, f"{name} {measure(value, unit)}", side)
        for i, (name, parts) in enumerate(bars.items()):
            y = top + 0.36 * i + 0.18
            x = left
            for part, color in faces.items():
                long = parts.get(part, 0) * inch
                sheet.box(x, y - 0.11, long, 0.22, mix(color, 0.85), radius=0, linewidth=0)
                x += long
            sheet.word(left - 0.08, y, name, TEXT, "right")
            # the goal's line ends before the words
            ground = dict(facecolor=CARD, edgecolor="none", pad=1)
            sheet.word(x + 0.08, y, words[name], TEXT, bbox=ground)
            listed = [f"{part} {measure(value, unit)}" for part, value in parts.items()]
            text.append(f"  {name}: {words[name]}" + f" ({', '.join(listed)})" * keyed)
        text += [f"  ({name}: {measure(value, unit)})" for name, value in goal.items()]
        return sheet.picture(title, *text)


# ----------------------------------------------------------------------------------------------------- live memory
PIXELS = 1500  # columns of a picture, about


def memory_timeline(run, *, title: str = "Live memory", most: float = 0) -> Picture:
    """Draw the live bytes of a run by category, over time, with their peak.

    run: what `study.measure` returned, with its phases marked, or the Timeline of one rank, `trace.memory[rank]`.
    most: bytes at the top of the axis, for pictures that are to be compared; the run's own peak if that is higher.
    Errors: ValueError for a run that takes no time.

    >>> import torch
    >>> from minidist.study import measure, memory_timeline
    >>> x = torch.empty(1000, 1000, device="meta")
    >>> memory_timeline(measure(lambda: (x @ x).mul_(2).sum()))
    Live memory
      peak 8 MB (other 8 MB), at 65.6 µs
      after forward (72 µs): 4 MB (other 4 MB)
      at the end: 4 MB (other 4 MB)
    """
    held: Timeline = run if isinstance(run, Timeline) else run.timeline
    phases = [] if held is run else run.phases
    end = max([0.0, *held.times[-1:].tolist(), *(stop for *_, stop in phases)])
    check_time(end)
    left = MARGIN + 0.55
    wide = WIDTH - left - MARGIN
    top = 0.85 + 0.2 * bool(phases)
    scale, unit = unit_of(end, TIME_UNITS)
    with card(WIDTH, top + 2.65, title) as sheet:
        sheet.key(left, 0.6, categories(held))
        ax = sheet.axes(left, top, wide, 2.1)
        stack(ax, held, end, scale, most)
        ax.set_xlim(0, end / scale)
        ax.set_xlabel(f"time, {unit}")
        high = top + 2.1 * (1 - held.peak / max(most, held.peak, 1) / 1.06)
        sheet.line([left, left + wide], [high, high], INK, linestyle=DASHED)
        # at whichever side is farther from it
        early = held.times[held.total.argmax()] <= end / 2
        x, side = (left + wide - 0.05, "right") if early else (left + 0.05, "left")
        y = high - 0.1 if most > 1.2 * held.peak else high + 0.1
        sheet.word(x, y, f"peak {measure(held.peak, 'B')}", ha=side, halo=CARD)
        for name, start, stop in phases:
            if stop < end:
                ax.axvline(stop / scale, color=INK, linewidth=0.8, zorder=3)
            if inches(name) + 0.06 < (stop - start) / end * wide:
                middle = left + (start + stop) / 2 / end * wide
                sheet.note(middle, top - 0.1, name, "center")
        when = measure(float(held.times[held.total.argmax()]), "s")
        text = [f"  peak {held_words(held.at_peak)}, at {when}"]
        for name, _, stop in phases:
            text.append(f"  after {name} ({measure(stop, 's')}): {held_words(held.at(stop))}")
        return sheet.picture(title, *text, f"  at the end: {held_words(held.at(float('inf')))}")


def held_words(parts: dict[str, int]) -> str:
    """Live bytes, and those of each category."""
    words = ", ".join(f"{name} {measure(nbytes, 'B')}" for name, nbytes in parts.items() if nbytes)
    return measure(sum(parts.values()), "B") + (f" ({words})" if words else "")


def categories(held: Timeline) -> dict[str, str]:
    """The categories that ever held a byte, from the bottom of a stack up, with their colours."""
    return {name: MEANING[name] for name, live in held.live.items() if live.any()}


def stack(ax, held: Timeline, end: float, scale: float, most: float) -> None:
    """Draw the stacked areas up to `end` seconds on `ax`, whose unit is `scale` seconds.

    most: the bytes at the top of the axis, where several pictures are to be compared; the peak if that is higher.
    """
    faces = categories(held)
    most = max(most, held.peak, 1)
    step, unit = unit_of(most, BYTE_UNITS)
    starts, shown = by_pixel(held, end)
    live = np.array([held.live[name][shown] for name in faces]) / step
    ax.stackplot(starts / scale, live, colors=faces.values(), step="post", linewidth=0, alpha=0.9)
    ax.set_ylim(0, most / step * 1.06)
    ax.locator_params(axis="y", nbins=4)
    ax.grid(axis="y")
    ax.set_ylabel(unit)


def by_pixel(held: Timeline, end: float) -> tuple[np.ndarray, list[int]]:
    """The seconds at which each pixel column begins, and which moment it shows: the highest of those within it."""
    edges = np.linspace(0, end, PIXELS + 1)
    last = np.searchsorted(held.times, edges, side="right")  # so many moments have come by then
    shown = []
    for first, stop in zip(np.maximum(last[:-1] - 1, 0), last[1:], strict=True):
        if stop:
            shown.append(first + int(held.total[first:stop].argmax()))
    return edges[:-1][last[1:] > 0], shown


# ----------------------------------------------------------------------------------------------------------- tables
RULE = "1px solid rgba(128, 128, 128, 0.55)"
THIN = "1px solid rgba(128, 128, 128, 0.25)"


class Table:
    """Rows of words, shown as HTML in a notebook and as aligned columns elsewhere. `text` is the latter."""

    def __init__(self, rows: list[list[Any]], columns: list[str], title: str):
        self.rows = [[_word(value) for value in row] for row in rows]
        self.columns = columns
        self.title = title
        self.right = []  # columns of numbers
        for c in range(len(columns)):
            values = [row[c] for row in rows if row[c] is not None]
            self.right.append(bool(values) and all(map(_is_number, values)))

    @property
    def text(self) -> str:
        widths = [max(map(len, column)) for column in zip(self.columns, *self.rows, strict=True)]
        lines = []
        for row in [self.columns, *self.rows]:
            cells = zip(row, widths, self.right, strict=True)
            padded = [word.rjust(n) if right else word.ljust(n) for word, n, right in cells]
            lines.append("  ".join(padded).rstrip())
        lines.insert(1, "─" * (sum(widths) + 2 * (len(widths) - 1)))
        return "\n".join([self.title, *lines] if self.title else lines)

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        bold = (
            f'<caption style="text-align: left; font-weight: bold">{escape(self.title)}</caption>'
        )
        body = "".join(self._row("td", row, THIN) for row in self.rows)
        style = "border-collapse: collapse; margin: 4px 0; color: inherit"
        return (
            f'<div style="overflow-x: auto"><table style="{style}">{bold if self.title else ""}'
            f"<thead>{self._row('th', self.columns, RULE)}</thead><tbody>{body}</tbody></table></div>"
        )

    def _row(self, tag: str, row: list[str], border: str) -> str:
        cells = []
        for word, right in zip(row, self.right, strict=True):
            side = "right" if right else "left"
            style = f"text-align: {side}; padding: 4px 12px; border-bottom: {border}"
            cells.append(f'<{tag} style="{style}">{escape(word)}</{tag}>')
        return f"<tr>{''.join(cells)}</tr>"


def table(rows: Sequence[Sequence[Any]], columns: Sequence[str], *, title: str = "") -> Table:
    """A table of `rows` under the names `columns`; columns of numbers are aligned to the right.

    Integers are shown with commas between thousands, floats with four significant figures, None as an en dash, and
    anything else as str() gives it. Errors: ValueError for a row whose length differs from that of `columns`.

    >>> from minidist.study import table
    >>> rows = [["ring", 6, 1.5], ["tree", 4, None]]
    >>> table(rows, ["algorithm", "steps", "of the bytes"], title="4 ranks")
    4 ranks
    algorithm  steps  of the bytes
    ──────────────────────────────
    ring           6           1.5
    tree           4             –
    """
    columns = [str(c) for c in columns]
    cells = [list(row) for row in rows]
    for i, row in enumerate(cells):
        if len(row) != len(columns):
            raise ValueError(
                f"row {i} has {len(row)} cells, but there are {len(columns)} columns: {', '.join(columns)}"
            )
    return Table(cells, columns, title)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _word(value: Any) -> str:
    if value is None:
        return "–"
    return short(value, 4) if _is_number(value) else str(value)
