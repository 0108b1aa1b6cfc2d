"""Numbers by exponent against what a half holds: bars over powers of two, and where they become 0 or inf.

       become 0  │ subnormal │        normal        │ become inf
         ▂▅      │ ▇█▆▃      │▂                     │
    2⁻³⁰      2⁻²⁵        2⁻¹⁴                    2¹⁶

One row for each set of numbers, all on one scale: the gradients, and the gradients times a loss scale, say. What has
no exponent is counted beside the row's name: numbers that are 0 already, inf or nan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from minidist.study import line
from minidist.study.picture import Picture, axes, inches, sheet, short
from minidist.train.amp import Exponents

MOST_ROWS = 6
TALL = 1.15
GAP = 0.55
HEAD = 0.45
FOOT = 0.55  # inches, but for the rows
COLORS = {
    "become 0": line.VERMILION,
    "are subnormal": line.ORANGE,
    "are normal": line.BLUE,
    "become inf": line.PURPLE,
}


def exponents(
    found: Exponents | Mapping[str, Exponents], *, title: str = "Numbers by exponent"
) -> Picture:
    """Draw what `minidist.train.amp.exponents` has counted: one count, or several by name.

    A bar is the share of all numbers that lie from 2^e to below 2^(e+1), coloured by what the dtype makes of them.
    Errors: ValueError for more than 6 counts, of more than one dtype, or without a number that has an exponent.
    """
    rows = {"": found} if isinstance(found, Exponents) else dict(found)
    held = {row.dtype for row in rows.values()}
    if not 0 < len(rows) <= MOST_ROWS or len(held) != 1:
        raise ValueError(
            f"exponents draws 1 to {MOST_ROWS} counts of one dtype, not {len(rows)} of {len(held)}"
        )
    powers = [e for row in rows.values() for e in row.counts]
    if not powers:
        raise ValueError(
            f"none of the {sum(r.total for r in rows.values())} numbers has an exponent: 0, inf or nan"
        )
    edges = limits(held.pop())
    low = min(powers) - 1
    high = max(powers) + 2
    top = max(count / row.total for row in rows.values() for count in row.counts.values())
    with sheet(line.WIDTH, HEAD + len(rows) * (TALL + GAP) + FOOT, title) as fig:
        for i, (name, row) in enumerate(rows.items()):
            width = line.WIDTH - 2 * line.MARGIN - 0.5
            ax = axes(fig, line.MARGIN + 0.5, HEAD + GAP + i * (TALL + GAP), width, TALL)
            ax.set_xlim(low, high)
            ax.set_ylim(0, 1.1 * top)
            _bars(ax, row, edges)
            _regions(ax, row, edges, width)
            _ticks(ax, last=i == len(rows) - 1)
            style = dict(fontsize=line.SMALL, xycoords="axes fraction", textcoords="offset points")
            ax.annotate(name, (0, 1), (0, 17), fontweight="bold", **style)
            ax.annotate(
                without_exponent(row), (1, 1), (0, 17), ha="right", color=line.MUTED, **style
            )
        return Picture(fig, _text(title, rows))


def limits(dtype: torch.dtype) -> list[int]:
    """The powers of two at which numbers stop to become 0, are normal, and become inf: fp16 has [-25, -14, 16]."""
    known = torch.finfo(dtype)
    normal, step = round(math.log2(known.tiny)), round(math.log2(known.eps))
    return [normal + step - 1, normal, math.ceil(math.log2(known.max))]


def _region(e: int, edges: list[int]) -> str:
    return list(COLORS)[sum(e >= edge for edge in edges)]


def _bars(ax, row: Exponents, edges: list[int]) -> None:
    shares = [count / row.total for count in row.counts.values()]
    colors = [COLORS[_region(e, edges)] for e in row.counts]
    ax.bar(list(row.counts), shares, width=0.9, align="edge", color=colors, zorder=2)


def _regions(ax, row: Exponents, edges: list[int], width: float) -> None:
    """A line at each edge in sight, and above each region what becomes of its numbers, where that fits."""
    low, high = ax.get_xlim()
    for edge in edges:
        if low < edge < high:
            ax.axvline(edge, color=line.INK, linewidth=0.8, linestyle=line.DASHES[1])
    bounds = [low, *(min(max(edge, low), high) for edge in edges), high]
    for (name, count), a, b in zip(_fates(row).items(), bounds, bounds[1:], strict=False):
        words = [f"{_share(count, row)} {name}", _share(count, row)]
        fits = [word for word in words if inches(word, line.SMALL) < (b - a) / (high - low) * width]
        if fits:
            ax.annotate(
                fits[0],
                ((a + b) / 2, 1),
                (0, 3),
                xycoords=("data", "axes fraction"),
                ha="center",
                textcoords="offset points",
                fontsize=line.SMALL,
                color=line.MUTED,
            )


def _ticks(ax, last: bool) -> None:
    low, high = map(int, ax.get_xlim())
    step = next(2**k for k in range(10) if (high - low) / 2**k <= 16)
    # none at the corner, where the 0 of the shares stands
    places = range((low // step + 1) * step, high + 1, step)
    ax.set_xticks(
        places, [f"2{_raised(e)}" if e else "1" for e in places] if last else [""] * len(places)
    )
    ax.set_yticks([0, ax.get_ylim()[1] / 1.1], ["0", f"{100 * ax.get_ylim()[1] / 1.1:.0f} %"])
    ax.tick_params(length=0)
    if last:
        ax.set_xlabel(
            "size of a number; a bar is the share of all numbers in one power of two",
            color=line.MUTED,
        )


def _raised(e: int) -> str:
    return str(e).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _fates(row: Exponents) -> dict[str, int]:
    """How many numbers go where, by the names of COLORS."""
    return dict(zip(COLORS, (row.underflow, row.subnormal, row.normal, row.overflow), strict=True))


def without_exponent(row: Exponents) -> str:
    """How many numbers a row has, and how many of them have no exponent."""
    zeros = f"{row.zeros:,} are" if row.zeros > 1 else f"{row.zeros or 'none'} is"
    bad = f", {row.bad:,} inf or nan" if row.bad else ""
    return f"of {row.total:,} numbers {zeros} 0 already{bad}"


def _share(count: int, row: Exponents) -> str:
    return f"{short(100 * count / row.total)} %"


def _text(title: str, rows: Mapping[str, Exponents]) -> str:
    out = [title] * bool(title)
    for name, row in rows.items():
        dtype = str(row.dtype).removeprefix("torch.")
        fates = _fates(row) | {"are 0": row.zeros, "are inf or nan": row.bad}
        words = ", ".join(f"{_share(count, row)} {fate}" for fate, count in fates.items() if count)
        span = (
            f"2{_raised(min(row.counts))} to 2{_raised(max(row.counts) + 1)}"
            if row.counts
            else "no exponent"
        )
        out.append(
            f"  {name + ': ' if name else ''}{row.total:,} numbers, {span}; in {dtype}: {words}"
        )
    return "\n".join(out)
