"""The rows of a timeline: which bars a trace gives each rank, and a row of them drawn.

Each rank has a row for what it did (its spans), and under it two thin ones for its wires: the sender's
is busy from a message's start until it is sent, the receiver's for as long before the message has
arrived. Lanes of `stream` have rows of their own, beneath the rank's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.patheffects import withStroke

from minidist.comm.trace import Message, Span, Trace
from minidist.study import line
from minidist.study.picture import inches

MOST_BARS, SLICES = 100, 720
TALL = {"do": 0.26, "send": 0.1, "receive": 0.1}  # inches of a row, where there is room
HEAD = (0.075, 0.03)  # inches: length and half the width of an arrow's head

# (rank, lane, row) → start, end, kind, name
Bars = dict[tuple[int, str, str], list[tuple[float, float, str, str]]]
Row = tuple[int, str, str, float]  # rank, lane, row, inches


def known_ranks(trace: Trace, ranks: Sequence[int] | None) -> list[int]:
    """`ranks`, all of the trace for None. ValueError for none at all, or one that the trace has not."""
    order = list(range(trace.n) if ranks is None else ranks)
    if not order or not set(order) <= set(range(trace.n)):
        raise ValueError(
            f"ranks {sorted(order)} are not all in this trace of {trace.n} ranks, 0 to {trace.n - 1}"
        )
    return order


def bars_of(messages: Iterable[Message], spans: Iterable[Span], shown: set[int]) -> Bars:
    """The bars of each row of the ranks `shown`, by their start."""
    bars: Bars = defaultdict(list)
    for s in spans:
        if s.rank in shown:
            bars[s.rank, s.lane, "do"].append((s.start, s.end, s.kind, s.name))
    for m in messages:
        busy = m.sent - m.start
        if m.src in shown:
            bars[m.src, m.lane, "send"].append((m.start, m.sent, "send", ""))
        if m.dst in shown:
            bars[m.dst, m.lane, "receive"].append((m.arrived - busy, m.arrived, "receive", ""))
    return {key: sorted(row) for key, row in bars.items()}


def kinds_of(found: set[str]) -> dict[str, str]:
    """The colour of each kind that was found, in the order of the legend."""
    named = sorted(found - set(line.KINDS))
    palette = {
        kind: line.OTHER_KINDS[i % len(line.OTHER_KINDS)] for i, kind in enumerate(named)
    } | line.KINDS
    return {kind: palette[kind] for kind in [*named, *line.KINDS] if kind in found}


def rows_of(bars: Bars, order: Sequence[int]) -> list[Row]:
    """The rows from the top, the same for each rank."""
    lanes = sorted({(lane != "main", lane) for _, lane, _ in bars})
    some = [
        (lane, row) for _, lane in lanes for row in TALL if any(k[1:] == (lane, row) for k in bars)
    ]
    return [(r, lane, row, TALL[row]) for r in order for lane, row in some]


def draw_row(
    ax, bars: list, y: float, tall: float, kinds: dict[str, str], inch: tuple[float, float]
) -> None:
    """The bars of one row, with names where they fit; above 100 of them, shades of how busy it was.

    inch: inches per second, and the seconds of one unit of the x axis.
    """
    per_second, scale = inch
    begin, end = ax.get_xlim()
    if len(bars) > MOST_BARS:
        grid = shades(bars, kinds, begin * scale, end * scale)
        ax.imshow(
            grid, extent=(begin, end, y + tall, y), aspect="auto", interpolation="nearest", zorder=2
        )
        return
    boxes, faces = [], []
    for start, stop, kind, name in bars:
        # a message of no bytes shows too
        seen = max((stop - start) * per_second - 0.008, 0.012) / per_second
        left, right = start / scale, (start + seen) / scale
        boxes.append([(left, y), (right, y), (right, y + tall), (left, y + tall)])
        faces.append(kinds[kind])
        left, right = max(left, begin), min(right, end)
        if (
            name
            and tall > 0.17
            and inches(name, line.SMALL) + 0.08 < (right - left) * scale * per_second
        ):
            # arrows cross the bars, not the names
            halo = [withStroke(linewidth=2.5, foreground=kinds[kind])]
            style = dict(
                ha="center",
                va="center",
                fontsize=line.SMALL,
                color=line.ink_on(kinds[kind]),
                zorder=5,
            )
            ax.text((left + right) / 2, y + tall / 2, name, path_effects=halo, **style)
    ax.add_collection(
        PolyCollection(boxes, facecolors=faces, linewidths=0, zorder=2), autolim=False
    )


def shades(bars: list, kinds: dict[str, str], begin: float, end: float) -> np.ndarray:
    """RGB of the share of each slice of the time that was busy; 0.4 of a colour is the least that shows."""
    card = np.array(to_rgb(line.CARD))
    out, edges = np.tile(card, (1, SLICES, 1)), np.linspace(begin, end, SLICES + 1)
    for kind, color in kinds.items():
        times = np.array([b[:2] for b in bars if b[2] == kind]).reshape(-1, 2)
        total = np.repeat(np.cumsum(times[:, 1] - times[:, 0]), 2)
        if len(times):
            busy = np.diff(np.interp(edges, times.ravel(), np.concatenate([[0], total[:-1]])))
            busy *= SLICES / (end - begin)
            amount = np.where(busy > 1e-9, 0.4 + 0.6 * busy, 0)[:, None]
            out += amount * (np.array(to_rgb(color)) - card)
    return np.clip(out, 0, 1)


def draw_arrows(ax, messages: Sequence[Message], middle: dict, inch: tuple[float, float]) -> None:
    """An arrow from the middle of the sender's wire, at the start, to the receiver's, at arrival.

    middle: (rank, lane, "send" or "receive") → y of that row, in inches.
    """
    per_second, scale = inch
    lines, heads = [], []
    for m in messages:
        tail, tip = middle.get((m.src, m.lane, "send")), middle.get((m.dst, m.lane, "receive"))
        if tail is None or tip is None:
            continue
        way = np.array([(m.arrived - m.start) * per_second, tip - tail])  # in inches
        ahead = way / max(float(np.hypot(*way)), 1e-9)
        back, side = HEAD[0] * ahead, HEAD[1] * np.array([-ahead[1], ahead[0]])
        inches = (-back, 0 * back, -back + side, -back - side)
        points = [(m.arrived / scale + x / per_second / scale, tip + y) for x, y in inches]
        lines.append([(m.start / scale, tail), points[0]])
        heads.append(points[1:])
    ax.add_collection(
        LineCollection(lines, colors=line.INK, linewidths=0.8, alpha=0.8, zorder=3), autolim=False
    )
    ax.add_collection(
        PolyCollection(heads, facecolors=line.INK, linewidths=0, alpha=0.8, zorder=3), autolim=False
    )
