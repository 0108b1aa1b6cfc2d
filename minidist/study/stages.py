"""When the stages of a pipeline worked: what `Pipeline.spans` says, or a simulation, as a timeline.

`schedule` draws a list on paper. This draws what ranks noted while they ran, on the axis of `timeline`, so that a run
by hand, one of the library's, and one on paper can stand under each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minidist.comm.trace import Trace
from minidist.parallel.schedules import Action
from minidist.parallel.simulate import Simulation
from minidist.study.gantt import timeline
from minidist.study.picture import Picture

KINDS = {"F": "forward", "B": "backward", "I": "backward", "W": "weights", "U": "update"}

Spans = Sequence[Sequence[tuple[Action | str, float, float]]]


def stages(runs: Mapping[str, Simulation | Spans], *, title: str = "Stages") -> Picture:
    """Draw runs of pipelines, `{"1F1B": run, …}`, on one axis of time; rank s is stage s.

    A run: for each stage its (action, start, end), in seconds, an action being `F3` or the library's; or a Simulation,
    of which a unit of time is drawn as a second.
    Errors: ValueError for nothing to draw, and for an action that is none of F, B, I, W and U.
    """
    return timeline({name: _trace(run) for name, run in runs.items()}, title=title)


def _trace(run: Simulation | Spans) -> Trace:
    rows = [[span[1:] for span in row] for row in run.spans] if isinstance(run, Simulation) else run
    trace = Trace(len(rows))
    for stage, row in enumerate(rows):
        for action, start, end in row:
            word = str(action)
            if word[:1] not in KINDS:
                raise ValueError(
                    f"stage {stage} did {word!r}, and actions are {', '.join(KINDS)} with a number"
                )
            trace.spans.add(stage, "main", KINDS[word[0]], start, end, word)
    return trace
