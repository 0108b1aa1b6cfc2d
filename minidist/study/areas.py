"""Live memory by category over time: stacked areas, the height of a moment is what was held then."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minidist.study import line
from minidist.study.picture import BYTE_UNITS, inches, measure, unit_of

PIXELS = 1500  # columns of a picture, about


def highest(memory: Mapping, ranks) -> int | None:
    """The first of `ranks` whose peak is the highest; None if none of them has a timeline."""
    return max((r for r in ranks if r in memory), key=lambda r: memory[r].peak, default=None)


def categories(timeline) -> list[str]:
    """The categories that ever held a byte, in the order of their colours."""
    return [c for c in line.MEMORY if timeline.live[c].any()]


def stack(ax, timeline, times: tuple[float, float], scale: float, most: float = 0) -> None:
    """Draw the stacked areas of `timeline` between two `times`, in seconds, on `ax`, whose unit is `scale` seconds.

    most: the bytes at the top of the axis, where several pictures are to be compared; its own peak otherwise.
    """
    names, most = categories(timeline), max(most, timeline.peak, 1)
    step, unit = unit_of(most, BYTE_UNITS)
    starts, shown = by_pixel(timeline, times)
    live = np.array([timeline.live[c][shown] for c in names]) / step
    ax.stackplot(
        starts / scale,
        live,
        colors=[line.MEMORY[c] for c in names],
        step="post",
        linewidth=0,
        alpha=0.9,
    )
    ax.set_ylim(0, most / step * 1.06)
    ax.locator_params(axis="y", nbins=4)
    ax.grid(axis="y")
    ax.set_ylabel(unit, color=line.MUTED)


def by_pixel(timeline, times: tuple[float, float]) -> tuple[np.ndarray, list[int]]:
    """The seconds at which each pixel column begins, and which moment it shows: the highest of those within it."""
    edges = np.linspace(*times, PIXELS + 1)
    last = np.searchsorted(timeline.times, edges, side="right")  # so many moments have come by then
    shown = [
        a + int(timeline.total[a:b].argmax())
        for a, b in zip(np.maximum(last[:-1] - 1, 0), last[1:])
        if b
    ]
    return edges[:-1][last[1:] > 0], shown


def legend(fig: Figure, y: float, words: str, names: list[str]) -> None:
    """What the areas are: `words`, then a swatch for each category, `y` inches from the bottom."""
    style = dict(transform=fig.dpi_scale_trans, va="center", fontsize=line.SMALL)
    fig.text(line.MARGIN, y, words, fontweight="bold", **style)
    swatches(
        fig,
        line.MARGIN + inches(words, line.SMALL, "bold") + 0.22,
        y,
        {c: line.MEMORY[c] for c in names},
    )


def swatches(fig: Figure, x: float, y: float, colors: dict[str, str]) -> None:
    """A small box of each colour with its name, from `x` inches on."""
    for name, color in colors.items():
        shape = dict(transform=fig.dpi_scale_trans, facecolor=color, edgecolor="none")
        fig.add_artist(Rectangle((x, y - 0.05), 0.2, 0.11, **shape))
        fig.text(x + 0.26, y, name, transform=fig.dpi_scale_trans, va="center", fontsize=line.SMALL)
        x += 0.5 + inches(name, line.SMALL)


def peak_words(rank: int, timeline) -> str:
    """Where the peak of a rank's memory is, and what it is made of."""
    parts = ", ".join(
        f"{name} {measure(nbytes, 'B')}" for name, nbytes in timeline.at_peak.items() if nbytes
    )
    when = measure(float(timeline.times[timeline.total.argmax()]), "s")
    return f"memory of rank {rank}: peak {measure(timeline.peak, 'B')} at {when}" + (
        f" ({parts})" if parts else ""
    )
