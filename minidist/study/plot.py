"""Plots of numbers: predicted curves with measured points, bars, and the traffic between ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from minidist.comm.trace import Trace
from minidist.study import line
from minidist.study.picture import BYTE_UNITS, Picture, axes, inches, measure, sheet, short, unit_of

MOST_LISTED = 12
MOST_BARS = 24
MOST_NUMBERS = 16
MOST_MATRIX = 256

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

    Points named like a line take its colour. xunit, yunit: "s" and "B" get prefixes (µs, kB), any
    other unit is set behind the numbers. words: what the picture shows, instead of the values in its
    text; for trainings whose losses another processor's rounding makes others.
    Errors: ValueError for nothing to draw, x and y of different length, an empty or infinite curve,
    a value below or at 0 on a logarithmic axis.
    """
    points = dict(points or {})
    both = [(name, *_curve(name, c, logx, logy)) for name, c in lines.items()]
    dots = [(name, *_curve(name, c, logx, logy)) for name, c in points.items()]
    if not both and not dots:
        raise ValueError("curves needs at least one line or one set of points")
    legend = max(inches(n, line.SMALL) for n in [*lines, *(_run(n, lines) for n in points)]) + 0.62
    top, left = (0.82 if title else 0.5), line.MARGIN + 0.75
    with sheet(line.WIDTH, top + 3.05, title) as fig:
        ax = axes(fig, left, top, line.WIDTH - left - line.MARGIN - legend - 0.1, 2.45)
        _draw(ax, both, dots)
        _scales(ax, logx, logy, xunit, yunit)
        _whole_ticks(ax, both + dots)
        ax.grid(True)
        ax.set_xlabel(xlabel, color=line.MUTED)
        style = dict(transform=fig.dpi_scale_trans, fontsize=line.SMALL, color=line.MUTED)
        fig.text(line.MARGIN, 3.05 + 0.17, ylabel, **style)
        ax.legend(
            loc="upper left", bbox_to_anchor=(1.01, 1.03), handlelength=2.0, borderaxespad=0.2
        )
        return Picture(fig, _curves_text(title, xlabel, ylabel, both, dots, xunit, yunit, words))


def _draw(ax, both: list, dots: list) -> None:
    names = list(dict.fromkeys(name for name, *_ in both + dots))
    for i, (name, x, y) in enumerate(both):
        ax.plot(x, y, color=line.hue(i), linestyle=line.DASHES[i % len(line.DASHES)], label=name)
    for name, x, y in dots:
        i = names.index(name)
        style = dict(
            marker=line.MARKERS[i % len(line.MARKERS)],
            markersize=6.5,
            markeredgewidth=1.6,
            linestyle="none",
        )
        word = _run(name, names[: len(both)])
        ax.plot(x, y, color=line.hue(i), markerfacecolor=line.CARD, label=word, zorder=3, **style)


def _run(name: str, lines: Iterable[str]) -> str:
    return f"{name}, run" if name in lines else name


def _curve(name: str, curve: Curve, logx: bool, logy: bool) -> tuple[list[float], list[float]]:
    x, y = ([getattr(v, "item", lambda v=v: v)() for v in values] for values in curve)
    if len(x) != len(y) or not x:
        raise ValueError(
            f"curve {name!r} needs as many x as y, and at least one: it has {len(x)} x and {len(y)} y"
        )
    for values, axis, log in ((x, "x", logx), (y, "y", logy)):
        for v in values:
            if not math.isfinite(v) or (log and v <= 0):
                where = f"the logarithmic {axis} axis" if log else f"the {axis} axis"
                raise ValueError(f"curve {name!r} has the value {v}, which has no place on {where}")
    return x, y


def _scales(ax, logx: bool, logy: bool, xunit: str | None, yunit: str | None) -> None:
    for axis, log, unit in ((ax.xaxis, logx, xunit), (ax.yaxis, logy, yunit)):
        if log:
            (ax.set_xscale if axis is ax.xaxis else ax.set_yscale)("log")
            axis.set_minor_locator(NullLocator())
            axis.set_minor_formatter(NullFormatter())
        axis.set_major_formatter(FuncFormatter(lambda v, _, unit=unit: measure(v, unit)))
    ax.tick_params(length=0)


def _whole_ticks(ax, curves: list) -> None:
    """Where only whole numbers are (ranks, stages, steps), only whole numbers are marked."""
    for axis, column in ((ax.xaxis, 1), (ax.yaxis, 2)):
        if axis.get_scale() == "linear" and all(
            type(v) is int for curve in curves for v in curve[column]
        ):
            axis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True))


def _curves_text(title, xlabel, ylabel, both, dots, xunit, yunit, words) -> str:
    out = [title] * bool(title) + [f"{ylabel or 'y'} against {xlabel or 'x'}"]
    for kind, sets in (("line", both), ("points", dots)):
        for name, x, y in sets:
            if words:
                out.append(f"  {kind} {name}")
                continue
            pairs = [f"{measure(a, xunit)}: {measure(b, yunit)}" for a, b in zip(x, y, strict=True)]
            if len(pairs) > MOST_LISTED:
                step = (len(pairs) - 1) / (MOST_LISTED - 1)
                pairs = [pairs[round(i * step)] for i in range(MOST_LISTED)]
            out.append(f"  {kind} {name}: " + "; ".join(pairs))
    return "\n".join(out + [f"  {words}"] * bool(words))


def bars(
    values: Mapping[str, float],
    *,
    title: str = "",
    unit: str | None = None,
    target: float | None = None,
    note: str = "target",
) -> Picture:
    """Draw a few labelled numbers as horizontal bars, in the order given.

    unit: "s" and "B" get prefixes, any other is set behind. target: a value to compare with, drawn
    as a dashed line and called `note`.
    Errors: ValueError for no value, a negative or infinite one, or more than 24.
    """
    if not 0 < len(values) <= MOST_BARS:
        raise ValueError(f"bars draws 1 to {MOST_BARS} numbers, not {len(values)}")
    goal = {} if target is None else {note: target}
    for name, v in [*values.items(), *goal.items()]:
        if not math.isfinite(v) or v < 0:
            raise ValueError(f"the bar {name!r} is {v}: bars are finite and not negative")
    words = {name: measure(v, unit) for name, v in values.items()}
    left, right = (max(map(inches, names)) + 0.2 for names in (values, words.values()))
    head = 0.62 if title else 0.25
    tall = 0.36 * len(values)
    below = 0.42 if goal else 0.15
    with sheet(line.WIDTH, head + tall + below, title) as fig:
        ax = axes(fig, line.MARGIN + left, head, line.WIDTH - 2 * line.MARGIN - left - right, tall)
        _bars(ax, values, words, max(*values.values(), *goal.values(), 0) or 1)
        for name, v in goal.items():
            _goal(ax, v, f"{name} {measure(v, unit)}")
        out = [title] * bool(title) + [f"  {name}: {word}" for name, word in words.items()]
        return Picture(
            fig, "\n".join(out + [f"  ({name}: {measure(v, unit)})" for name, v in goal.items()])
        )


def _bars(ax, values: Mapping[str, float], words: dict[str, str], most: float) -> None:
    ax.set_xlim(0, most)
    ax.set_ylim(len(values) - 0.5, -0.5)
    ax.barh(range(len(values)), list(values.values()), height=0.62, color=line.mix(line.BLUE, 0.75))
    for i, (name, v) in enumerate(values.items()):
        # the target's line ends before the words
        ground = dict(facecolor=line.CARD, edgecolor="none", pad=1)
        ax.text(v + 0.012 * most, i, words[name], va="center", zorder=3, bbox=ground)
    ax.set_yticks(range(len(values)), list(values), fontsize=line.TEXT, color=line.INK)
    ax.set_xticks([])
    ax.tick_params(length=0)
    ax.spines["bottom"].set_visible(False)


def _goal(ax, value: float, word: str) -> None:
    ax.axvline(value, color=line.VERMILION, linestyle=line.DASHES[1], linewidth=1.4, zorder=2)
    x = value / ax.get_xlim()[1]
    style = dict(ha="right" if x > 0.5 else "left", va="top", fontsize=line.SMALL, color=line.MUTED)
    ax.annotate(
        word, (x, 0), (0, -4), xycoords="axes fraction", textcoords="offset points", **style
    )


def traffic(trace: Trace, *, title: str = "Bytes from each rank to each") -> Picture:
    """Draw the bytes that went over each link of `trace`, as a matrix of sender × receiver.

    Numbers stand in the cells up to 16 ranks. Errors: ValueError for more than 256 ranks.
    """
    n = trace.n
    if n > MOST_MATRIX:
        raise ValueError(f"traffic draws at most {MOST_MATRIX} ranks, and there are {n}")
    sent = [[0] * n for _ in range(n)]
    for m in trace:
        sent[m.src][m.dst] += m.nbytes
    scale, unit = unit_of(max(map(max, sent)), BYTE_UNITS)
    exact = max(map(max, sent)) < 10_000
    words = [[(f"{b:,}" if exact else short(b / scale)) if b else "" for b in row] for row in sent]
    cell = (
        max(0.44, max(inches(w, line.SMALL) for row in words for w in row) + 0.16)
        if n <= MOST_NUMBERS
        else 5.0 / n
    )
    unit = "B" if exact else unit
    width = max(
        line.MARGIN * 2 + 0.8 + n * cell, inches(title, line.TITLE, "bold") + 2 * line.MARGIN, 2.6
    )
    with sheet(width, 1.05 + n * min(cell, 0.44) + line.MARGIN, title) as fig:
        _matrix(fig, sent, words, cell, unit)
        return Picture(fig, _traffic_text(title, sent))


def _matrix(
    fig: Figure, sent: list[list[int]], words: list[list[str]], cell: float, unit: str
) -> None:
    n, most = len(sent), max(map(max, sent)) or 1
    ax = axes(fig, line.MARGIN + 0.8, 1.05, n * cell, n * min(cell, 0.44))
    colors = [
        [
            line.mix(line.BLUE, 0.08 + 0.82 * b / most) if b else line.mix(line.GREY, 0.12)
            for b in row
        ]
        for row in sent
    ]
    pixels = [[[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in row] for row in colors]
    ax.imshow(pixels, aspect="auto", interpolation="nearest")
    for i, row in enumerate(words if n <= MOST_NUMBERS else []):
        for j, word in enumerate(row):
            word, ink = (
                ("–", line.MUTED) if i == j and not word else (word, line.ink_on(colors[i][j]))
            )
            ax.text(j, i, word, ha="center", va="center", fontsize=line.SMALL, color=ink)
    every = next(2**k for k in range(9) if 2**k * min(cell, 0.44) >= 0.2)
    ax.set_yticks(range(0, n, every), [f"rank {r}" for r in range(0, n, every)])
    across = next(2**k for k in range(9) if 2**k * cell >= 0.34)
    ax.set_xticks(range(0, n, across), [str(r) for r in range(0, n, across)])
    ax.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
    ax.spines[["left", "bottom"]].set_visible(False)
    for k in range(n + 1) if n <= MOST_NUMBERS else []:
        ax.axhline(k - 0.5, color=line.CARD, linewidth=2)
        ax.axvline(k - 0.5, color=line.CARD, linewidth=2)
    y = fig.get_figheight() - 0.64
    fig.text(
        line.MARGIN,
        y,
        f"from rank ↓, to rank →, {unit}",
        transform=fig.dpi_scale_trans,
        fontsize=line.SMALL,
        color=line.MUTED,
    )


def _traffic_text(title: str, sent: list[list[int]]) -> str:
    n, total = len(sent), sum(map(sum, sent))
    out = [f"{title}: {n} ranks, {total:,} B"]
    for r, row in enumerate(sent if n <= MOST_NUMBERS else []):
        to = ", ".join(f"{b:,} B to {d}" for d, b in enumerate(row) if b)
        out.append(f"  rank {r}: {to or 'nothing'}")
    if n > MOST_NUMBERS:
        each = [sum(row) for row in sent]
        links = sum(1 for row in sent for b in row if b)
        out.append(
            f"  {min(each):,} to {max(each):,} B from a rank, over {links:,} of {n * (n - 1):,} links"
        )
    return "\n".join(out)
