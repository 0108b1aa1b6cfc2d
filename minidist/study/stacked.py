"""Bars made of parts: what memory is for, side by side for several runs or ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping

from minidist.study import line
from minidist.study.areas import swatches
from minidist.study.picture import Picture, axes, inches, measure, sheet

MOST_BARS = 24


def stacked(
    bars: Mapping[str, Mapping[str, float]],
    *,
    title: str = "",
    unit: str | None = None,
    notes: Mapping[str, str] | None = None,
) -> Picture:
    """Draw `{"name of a bar": {"name of a part": value}}` as horizontal bars, the sum behind each.

    Categories of memory have the colours that they have everywhere.  unit: "s" and "B" get prefixes.  notes: words
    behind the sum of a bar.
    Errors: ValueError for no bar, more than 24, or a part that is negative or infinite.
    """
    if not 0 < len(bars) <= MOST_BARS:
        raise ValueError(f"stacked draws 1 to {MOST_BARS} bars, not {len(bars)}")
    for name, parts in bars.items():
        for part, v in parts.items():
            if not math.isfinite(v) or v < 0:
                raise ValueError(
                    f"{part!r} of the bar {name!r} is {v}: parts are finite and not negative"
                )
    notes = dict(notes or {})
    colors = _colors(bars)
    words = {
        name: "  ".join(filter(None, (measure(sum(parts.values()), unit), notes.get(name, ""))))
        for name, parts in bars.items()
    }
    left, right = (max(map(inches, texts)) + 0.2 for texts in (words, words.values()))
    head, tall = (0.62 if title else 0.25) + 0.28, 0.36 * len(bars)
    with sheet(line.WIDTH, head + tall + 0.15, title) as fig:
        swatches(fig, line.MARGIN + left, tall + 0.15 + 0.16, colors)
        ax = axes(fig, line.MARGIN + left, head, line.WIDTH - 2 * line.MARGIN - left - right, tall)
        _draw(ax, bars, colors, words)
        return Picture(fig, _text(title, bars, words, unit))


def _colors(bars: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """The colour of each part that is not 0 everywhere, in the order in which they are stacked."""
    parts = dict.fromkeys(part for some in bars.values() for part, v in some.items() if v)
    others = iter(
        [hue for hue in line.HUES if hue not in {line.MEMORY.get(part) for part in parts}]
        * len(parts)
    )
    return {part: line.MEMORY[part] if part in line.MEMORY else next(others) for part in parts}


def _draw(ax, bars, colors: dict[str, str], words: dict[str, str]) -> None:
    most = max(sum(parts.values()) for parts in bars.values()) or 1
    ax.set_xlim(0, most)
    ax.set_ylim(len(bars) - 0.5, -0.5)
    for i, (name, parts) in enumerate(bars.items()):
        start = 0.0
        for part, color in colors.items():
            ax.barh(i, parts.get(part, 0), left=start, height=0.62, color=line.mix(color, 0.85))
            start += parts.get(part, 0)
        ax.text(start + 0.012 * most, i, words[name], va="center")
    ax.set_yticks(range(len(bars)), list(bars), fontsize=line.TEXT, color=line.INK)
    ax.set_xticks([])
    ax.tick_params(length=0)
    ax.spines["bottom"].set_visible(False)


def _text(title: str, bars, words: dict[str, str], unit: str | None) -> str:
    held = {
        name: ", ".join(f"{part} {measure(v, unit)}" for part, v in parts.items() if v)
        for name, parts in bars.items()
    }
    return "\n".join(
        [title] * bool(title) + [f"  {name}: {words[name]} ({held[name]})" for name in bars]
    )
