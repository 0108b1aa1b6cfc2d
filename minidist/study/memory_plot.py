"""What memory held during a run, by category: stacked areas over time, with the peak and the phases of a step."""

from __future__ import annotations

from minidist.comm.trace import Results, Timeline, Trace
from minidist.study import line
from minidist.study.areas import categories, stack, swatches
from minidist.study.meter import Profile
from minidist.study.picture import (
    BYTE_UNITS,
    TIME_UNITS,
    Picture,
    axes,
    inches,
    measure,
    sheet,
    unit_of,
)

# inches: title and legend, phases, the areas, their time axis
HEAD = 0.85
NAMES = 0.2
TALL = 2.1
FOOT = 0.55
LEFT = line.MARGIN + 0.55

Phases = list[tuple[str, float, float]]


def memory_timeline(
    run: Profile | Trace | Results | Timeline,
    rank: int = 0,
    *,
    title: str = "Live memory",
    most: float = 0,
) -> Picture:
    """Draw the live bytes of `rank` by category over time.

    run: what `measure` returned (its phases are marked), or a run of a World with a meter, or one timeline.
    most: bytes at the top of the axis, where pictures are to be compared; the run's own peak if that is higher.
    Errors: ValueError for a rank whose memory was not followed, or for memory that takes no time.
    """
    held, phases = _found(run, rank)
    end = max([float(held.times[-1]), *(p[2] for p in phases)]) if len(held) else 0.0
    if end <= 0:
        raise ValueError(
            f"all {len(held):,} changes of memory are at {measure(end, 's')}: there is no time to draw"
        )
    top = HEAD + NAMES * bool(phases)
    with sheet(line.WIDTH, top + TALL + FOOT, title) as fig:
        swatches(
            fig,
            LEFT,
            top + TALL + FOOT - 0.6,
            {name: line.MEMORY[name] for name in categories(held)},
        )
        ax = axes(fig, LEFT, top, line.WIDTH - LEFT - line.MARGIN, TALL)
        scale, unit = unit_of(end, TIME_UNITS)
        stack(ax, held, (0.0, end), scale, most)
        ax.set_xlim(0, end / scale)
        ax.set_xlabel(f"time, {unit}", color=line.MUTED)
        ax.tick_params(length=0)
        _peak(ax, held, end, most)
        _phases(ax, phases, scale, end)
        return Picture(fig, _text(title, held, phases))


def _found(run, rank: int) -> tuple[Timeline, Phases]:
    if isinstance(run, Profile):
        return run.timeline, run.phases
    if isinstance(run, Timeline):
        return run, []
    memory = (run.trace if isinstance(run, Results) else run).memory
    if rank not in memory:
        known = (
            f"those that have one: {sorted(memory)}"
            if memory
            else "none has one (a World follows it with a meter)"
        )
        raise ValueError(f"rank {rank} has no timeline of its memory; {known}")
    return memory[rank], []


def _peak(ax, held: Timeline, end: float, most: float) -> None:
    """A dashed line at the peak, with its bytes at whichever side is farther from it, above it where there is room."""
    when, top = (
        float(held.times[held.total.argmax()]),
        held.peak / unit_of(max(most, held.peak, 1), BYTE_UNITS)[0],
    )
    ax.axhline(top, color=line.INK, linestyle=line.DASHES[1], linewidth=1.0, zorder=3)
    at, ha, shift = (0.0, "left", 4) if when > end / 2 else (1.0, "right", -4)
    up, va = (4, "bottom") if most > 1.2 * held.peak else (-4, "top")
    ax.annotate(
        f"peak {measure(held.peak, 'B')}",
        (at, top),
        (shift, up),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha=ha,
        va=va,
        fontsize=line.SMALL,
        zorder=4,
    )


def _phases(ax, phases: Phases, scale: float, end: float) -> None:
    """Their names above the areas, where they fit, and a line where one ends."""
    wide = line.WIDTH - LEFT - line.MARGIN
    for name, start, stop in phases:
        if stop < end:
            ax.axvline(stop / scale, color=line.INK, linewidth=0.8, zorder=3)
        if inches(name, line.SMALL) + 0.06 < (stop - start) / end * wide:
            ax.annotate(
                name,
                ((start + stop) / 2 / scale, 1.0),
                (0, 4),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                ha="center",
                fontsize=line.SMALL,
                color=line.MUTED,
            )


def _text(title: str, held: Timeline, phases: Phases) -> str:
    when = measure(float(held.times[held.total.argmax()]), "s")
    rows = [title] * bool(title) + [f"  peak {_held(held.at_peak)}, at {when}"]
    rows += [
        f"  after {name} ({measure(stop, 's')}): {_held(held.at(stop))}" for name, _, stop in phases
    ]
    return "\n".join([*rows, f"  at the end: {_held(held.at(float('inf')))}"])


def _held(parts: dict[str, int]) -> str:
    words = ", ".join(f"{name} {measure(nbytes, 'B')}" for name, nbytes in parts.items() if nbytes)
    return measure(sum(parts.values()), "B") + (f" ({words})" if words else "")
