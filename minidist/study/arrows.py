"""Messages between ranks as arrows: the space–time diagram.

One line per rank; an arrow leaves its sender when the message starts and reaches its receiver when it
has arrived. After Lamport, "Time, Clocks, and the Ordering of Events in a Distributed System" (1978),
figure 1; `clock="steps"` counts as his clocks do: a message is one step later than every message that
its sender had before, and a rank sends one and receives one in a step.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from minidist.comm.trace import Message, Trace
from minidist.study import line
from minidist.study.picture import TIME_UNITS, Picture, axes, inches, measure, sheet, unit_of

ROW, LABELS = 0.62, 0.62  # inches: between two ranks, and for their names
MOST_RANKS = 16
MOST_ARROWS = 300
MOST_LABELS = 48
MOST_LINES = 24

Arrow = tuple[Message, float, float]  # a message with where its arrow starts and ends on the x axis


def messages(
    trace: Trace,
    *,
    title: str = "Messages between ranks",
    clock: str = "time",
    label: str | None = "label",
    ranks: Sequence[int] | None = None,
) -> Picture:
    """Draw the messages of `trace`, an arrow each, in seconds (`clock="time"`) or in steps (`"steps"`).

    label: what to write at an arrow: its "label", its "bytes", or None; left out above 48 arrows.
    ranks: only messages among these ranks, drawn in this order.
    Errors: ValueError for more than 16 ranks or 300 messages, no message at all, a trace whose times
    are all equal drawn in time, an unknown rank, clock or label.
    """
    _check(clock, label, trace, ranks)
    shown = list(range(trace.n)) if ranks is None else list(ranks)
    chosen = [m for m in trace if m.src in shown and m.dst in shown]
    if not 0 < len(chosen) <= MOST_ARROWS:
        raise ValueError(
            f"messages() draws 1 to {MOST_ARROWS} arrows, and there are {len(chosen):,}: "
            "choose other ranks=[…], or draw timeline() or traffic()"
        )
    arrows, unit = _in_time(chosen) if clock == "time" else _in_steps(chosen)
    height = 0.6 + (len(shown) - 1) * ROW + 0.4 + (0.65 if clock == "time" else 0.42)
    with sheet(line.WIDTH, height, title) as fig:
        _draw(fig, arrows, shown, unit, label if len(arrows) <= MOST_LABELS else None)
        return Picture(fig, _text(title, arrows, unit, len(shown)))


def _check(clock: str, label: str | None, trace: Trace, ranks: Sequence[int] | None) -> None:
    if clock not in ("time", "steps"):
        raise ValueError(f'clock must be "time" or "steps", not {clock!r}')
    if label not in ("label", "bytes", None):
        raise ValueError(f'label must be "label", "bytes" or None, not {label!r}')
    count = trace.n if ranks is None else len(ranks)
    if count > MOST_RANKS:
        raise ValueError(
            f"messages() draws arrows between at most {MOST_RANKS} ranks, and there are {count}: "
            "choose some, such as ranks=[0, 1, 2, 3], or draw timeline() or traffic()"
        )
    for r in ranks or []:
        if not 0 <= r < trace.n:
            raise ValueError(
                f"rank {r} is not in this trace of {trace.n} ranks, 0 to {trace.n - 1}"
            )


def _in_time(chosen: list[Message]) -> tuple[list[Arrow], str]:
    end = max(m.arrived for m in chosen)
    if end == min(m.start for m in chosen):
        raise ValueError(
            f'every message starts and arrives at {measure(end, "s")}: draw them with clock="steps"'
        )
    scale, unit = unit_of(end, TIME_UNITS)
    return [(m, m.start / scale, m.arrived / scale) for m in chosen], unit


def _in_steps(chosen: list[Message]) -> tuple[list[Arrow], str]:
    sent: dict[int, int] = {}
    received: dict[int, int] = {}
    heard: list[tuple[float, int, int]] = []  # arrived, receiver, step
    arrows = []
    for m in sorted(chosen, key=lambda m: m.start):
        before = max((s for t, r, s in heard if r == m.src and t <= m.start), default=0)
        step = 1 + max(before, sent.get(m.src, 0), received.get(m.dst, 0))
        sent[m.src] = received[m.dst] = step
        heard.append((m.arrived, m.dst, step))
        arrows.append((m, step - 0.88, step - 0.12))
    return sorted(arrows, key=lambda a: (a[1], a[0].src)), "step"


def _draw(fig: Figure, arrows: list[Arrow], shown: list[int], unit: str, label: str | None) -> None:
    last = len(shown) - 1
    width, tall = line.WIDTH - 2 * line.MARGIN - LABELS - 0.1, last * ROW + 0.4
    ax = axes(fig, line.MARGIN + LABELS, 0.6, width, tall)
    ends = [x for _, *pair in arrows for x in pair]
    low, high = (0, int(max(ends) + 1)) if unit == "step" else (min(0, *ends), max(ends))
    pad = 0 if unit == "step" else 0.015 * (high - low)
    ax.set_xlim(low - pad, high + pad)
    ax.set_ylim(last + 0.2 / ROW, -0.2 / ROW)
    ax.set_yticks(range(len(shown)), [f"rank {r}" for r in shown])
    ax.tick_params(length=0)
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.hlines(range(len(shown)), low, high, color=line.EDGE, linewidth=1.2, zorder=1)
    if unit == "step":
        _step_axis(ax, high)
    else:
        ax.grid(axis="x")
        ax.set_xlabel(f"time, {unit}", color=line.MUTED)
    inch = (width / (high - low + 2 * pad), ROW)
    taken: list[tuple[float, float, float, float]] = []
    for m, start, end in sorted(
        arrows, key=lambda a: -abs(shown.index(a[0].dst) - shown.index(a[0].src))
    ):
        a, b = shown.index(m.src), shown.index(m.dst)
        color = line.hue(m.src)
        style = dict(
            arrowstyle="-|>,head_width=0.22,head_length=0.5",
            color=color,
            shrinkA=0,
            shrinkB=1,
            lw=1.5,
        )
        ax.annotate("", (end, b), (start, a), arrowprops=style, zorder=3)
        ax.plot([start], [a], "o", color=color, markersize=4, zorder=4)
        word = {"label": m.label, "bytes": measure(m.nbytes, "B"), None: None}[label]
        if word:
            _label(ax, word, (start, a), (end, b), inch, taken)


def _step_axis(ax, steps: int) -> None:
    for k in range(0, steps, 2):
        ax.axvspan(k, k + 1, color=line.FAINT, alpha=0.4, linewidth=0, zorder=0)
    every = -(-steps // 12)
    ax.set_xticks(
        [k + 0.5 for k in range(0, steps, every)], [f"step {k + 1}" for k in range(0, steps, every)]
    )


def _label(ax, word: str, tail: tuple, head: tuple, inch: tuple, taken: list) -> None:
    """Write `word` on its arrow, at the first place near its tail that is free."""
    half, rows = (inches(word, line.SMALL) / 2 + 0.05, 0.09), abs(head[1] - tail[1])
    spot = None
    for part in (0.3, 0.4, 0.2, 0.5, 1.5, 1.4, 1.6) if rows > 1 else (0.5, 0.64, 0.36, 0.74, 0.26):
        x, y = (tail[i] + part / rows * (head[i] - tail[i]) for i in (0, 1))
        box = (
            x * inch[0] - half[0],
            y * inch[1] - half[1],
            x * inch[0] + half[0],
            y * inch[1] + half[1],
        )
        free = not any(
            box[0] < t[2] and t[0] < box[2] and box[1] < t[3] and t[1] < box[3] for t in taken
        )
        if spot is None or free:
            spot = (x, y, box)
        if free:
            break
    x, y, box = spot
    taken.append(box)
    halo = [withStroke(linewidth=4, foreground=line.CARD)]
    ax.text(x, y, word, ha="center", va="center", fontsize=line.SMALL, path_effects=halo, zorder=5)


def _text(title: str, arrows: list[Arrow], unit: str, ranks: int) -> str:
    count, total = len(arrows), sum(m.nbytes for m, *_ in arrows)
    out = [f"{title}: {ranks} ranks, {count} message{'s' * (count != 1)}, {total:,} B"]
    for m, start, _ in arrows[:MOST_LINES]:
        when = (
            f"step {round(start + 0.88)}"
            if unit == "step"
            else f"{measure(m.start, 's')} to {measure(m.arrived, 's')}"
        )
        out.append(
            f"  {when}: {m.src} → {m.dst}, {m.nbytes:,} B" + (f", {m.label}" if m.label else "")
        )
    return "\n".join(out + [f"  … and {count - MOST_LINES} more"] * (count > MOST_LINES))
