"""A pipeline's schedule as a picture: a row for each stage, a box for each action, as wide as it takes.

`timeline` draws what ranks did; this draws what a list says, from a simulation, with the micro-batches' numbers, so
that a learner sees where the bubble is and which work could fill it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.collections import PolyCollection

from minidist.parallel.schedules import Action, in_flight
from minidist.parallel.simulate import Simulation, Span, simulate
from minidist.study import line
from minidist.study.areas import swatches
from minidist.study.picture import Picture, axes, inches, measure, sheet

KINDS = {
    "F": ("forward", line.KINDS["forward"]),
    "B": ("backward", line.KINDS["backward"]),
    "I": ("backward, input (I)", line.BLUE),
    "W": ("backward, weights (W)", line.ORANGE),
    "U": ("update", line.KINDS["update"]),
}
LABELS = 0.75
HEAD = 0.3
FOOT = 0.45
TOP = 0.8  # inches
ROW = 0.27
MOST_INCHES = 7.0
MOST_STAGES = 64
CHUNK = 0.62  # how much of its colour a chunk keeps beside the one before

Lists = Sequence[Sequence[Action]]


def schedule(
    what: Simulation | Lists | Mapping[str, Simulation | Lists],
    *,
    title: str = "Schedule",
    unit: str | None = None,
) -> Picture:
    """Draw a schedule: a Simulation, or the lists of all stages (F, I, W take 1, B 2); {"name": …} compares several.

    Boxes of chunk 1, 2, … are paler. unit: of the times; "s" gets prefixes (µs, ms).
    Errors: ValueError for nothing to draw, lists that cannot run, more than 64 stages in all.
    """
    several = dict(what) if isinstance(what, Mapping) else {"": what}
    runs = {
        str(n): w if isinstance(w, Simulation) else simulate(w, update=0.25)
        for n, w in several.items()
    }
    stages = sum(len(run.spans) for run in runs.values())
    if not 0 < stages <= MOST_STAGES:
        raise ValueError(
            f"a schedule is drawn with 1 to {MOST_STAGES} stages, and there are {stages}"
        )
    tall = min(ROW, (MOST_INCHES - HEAD * len(runs)) / stages)
    used = {span.action.kind for run in runs.values() for row in run.spans for span in row}
    end = max(span.end for run in runs.values() for row in run.spans for span in row)
    with sheet(line.WIDTH, TOP + FOOT + HEAD * len(runs) + tall * stages, title) as fig:
        swatches(
            fig,
            line.MARGIN,
            fig.get_figheight() - 0.58,
            dict(v for k, v in KINDS.items() if k in used),
        )
        top = TOP
        for name, run in runs.items():
            style = dict(transform=fig.dpi_scale_trans, va="center", fontsize=line.TEXT)
            fig.text(
                line.MARGIN, fig.get_figheight() - top - HEAD / 2, _words(name, run, unit), **style
            )
            top += HEAD
            _draw(fig, top, tall, run, end)
            top += tall * len(run.spans)
        fig.axes[-1].tick_params(labelbottom=True)
        fig.axes[-1].set_xlabel("time" + f", {unit}" * bool(unit), color=line.MUTED)
        return Picture(fig, _text(title, runs, unit))


def _draw(fig, top: float, tall: float, run: Simulation, end: float) -> None:
    """The boxes of one schedule, their numbers where they fit."""
    width = line.WIDTH - 2 * line.MARGIN - LABELS
    ax = axes(fig, line.MARGIN + LABELS, top, width, tall * len(run.spans))
    ax.set_xlim(0, end)
    ax.set_ylim(len(run.spans), 0)
    edge = 0.01 / width * end
    spans = [s._replace(end=max(s.end - edge, s.start + edge)) for row in run.spans for s in row]
    boxes = [
        [
            (x, s.stage + y)
            for x, y in ((s.start, 0.06), (s.end, 0.06), (s.end, 0.94), (s.start, 0.94))
        ]
        for s in spans
    ]
    faces = [_face(s.action) for s in spans]
    for span, face, word in zip(spans, faces, _fitting(spans, width / end, tall), strict=True):
        style = dict(ha="center", va="center", fontsize=line.SMALL, color=line.ink_on(face))
        ax.text((span.start + span.end) / 2, span.stage + 0.5, word, **style)
    ax.add_collection(PolyCollection(boxes, facecolors=faces, linewidths=0), autolim=False)
    every = next(2**k for k in range(7) if tall * 2**k > 0.15)
    ax.set_yticks(
        [s + 0.5 for s in range(0, len(run.spans), every)],
        [f"stage {s}" for s in range(0, len(run.spans), every)],
    )
    ax.tick_params(length=0, labelbottom=False)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)


def _face(action: Action) -> str:
    return line.mix(KINDS[action.kind][1], CHUNK**action.chunk)


def _fitting(spans: list[Span], inch: float, tall: float) -> list[str]:
    """The actions' names if there is room for all (but updates), else their numbers where there is.

    inch: inches for a unit of time.
    """
    room = [(s.end - s.start) * inch - 0.02 for s in spans]
    names = [str(s.action) for s in spans]
    fits = all(
        inches(n, line.SMALL) < r for n, r, s in zip(names, room, spans) if s.action.kind != "U"
    )
    words = names if fits else [str(s.action.micro) for s in spans]
    return [w if tall > 0.16 and inches(w, line.SMALL) < r else "" for w, r in zip(words, room)]


def _words(name: str, run: Simulation, unit: str | None) -> str:
    idle = f"{measure(run.time, unit)}, {run.bubble:.1%} of it bubble"
    if run.cost < run.time * (1 - 1e-9):
        idle += f"; a stage's longest time {measure(run.cost, unit)}, {run.bubble_rate:.1%} of it bubble"
    return f"{name}: {idle}" if name else idle


def _text(title: str, runs: dict[str, Simulation], unit: str | None) -> str:
    out = [title] * bool(title)
    for name, run in runs.items():
        kept = ", ".join(str(in_flight([span.action for span in row])) for row in run.spans)
        out.append(f"{_words(name, run, unit)}; activations kept by stage: {kept}")
        out += [
            f"  stage {s}: {' '.join(str(span.action) for span in row)}"
            for s, row in enumerate(run.spans)
        ]
    return "\n".join(out)
