"""A schedule of a pipeline that the reader changes, and that is checked at once.

    schedule_editor    a page with the list of each stage, to type or drag, when its actions run, and what is wrong

The rules of `parallel.validate` and the clock of `parallel.simulate` stand a second time in the page (`page/rules.js`),
since each change asks them and no kernel need be there. A test in a browser compares what they say, word for word.
Lists with updates (PipeDream's) are checked for their work and their waits; versions of weights are not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from minidist.parallel.schedules import KINDS, Action, Lists, Shape, in_flight
from minidist.parallel.simulate import simulate
from minidist.parallel.validate import NEEDED, NOUNS, SAME_WORK, ScheduleError, validate
from minidist.study.frames import Framed, document
from minidist.study.picture import MEANING, Picture, ink_on
from minidist.study.timelines import ACTIONS, stages

TIMES = {"F": 1, "B": 2, "I": 1, "W": 1, "U": 0}
IMPORTS = """from minidist.parallel.schedules import parse_lists
from minidist.parallel.validate import validate"""


def schedule_editor(
    schedules: Mapping[str, Lists],
    M: int,
    *,
    v: int = 1,
    place: str = "loop",
    comm: str = "mailbox",
    title: str = "A schedule to change",
) -> Editor:
    """Let the reader change a schedule: `schedule_editor({"1F1B": lists(one_f_one_b, 4, 8)}, 8)`.

    schedules: the schedules to start from, by name, all with the same number of stages; they may be wrong, for the
    reader to repair.  M, v, place: the number of micro-batches, the chunks of a stage, and where these are.  comm: how
    messages queue up at first, see `validate`.
    A forward takes 1 unit of time, a backward 2, and each half of a backward 1. The editor shows the first wrong action
    and why it is wrong, or else the time, the share of the bubble, and the most activations that each stage keeps; and
    a call of `validate` that gives the same result.
    Errors: ValueError for no schedule, for schedules with different numbers of stages, and for anything that is not a
    pipeline.

    >>> from minidist.parallel.schedules import gpipe, lists, one_f_one_b
    >>> from minidist.study import schedule_editor
    >>> schedule_editor({"1F1B": lists(one_f_one_b, 2, 3), "GPipe": lists(gpipe, 2, 3)}, 3)
    A schedule to change
    1F1B: time 12, bubble 25.0 %
      stage 0: F0 F1 B0 F2 B1 B2 (2 activations at most)
      stage 1: F0 B0 F1 B1 F2 B2 (1 activations at most)
    GPipe: time 12, bubble 25.0 %
      stage 0: F0 F1 F2 B0 B1 B2 (3 activations at most)
      stage 1: F0 F1 F2 B0 B1 B2 (3 activations at most)
    """
    counts = {name: len(each) for name, each in schedules.items()}
    if len(set(counts.values())) != 1:
        raise ValueError(f"schedules of one number of stages are needed, not {counts}")
    shape = Shape(next(iter(counts.values())), M, v, place).checked()
    return Editor(dict(schedules), shape, comm, title)


class Editor(Framed):
    """A page to change a schedule: `page` (HTML), `picture` (the first one, still), `text`, `save(path)`."""

    def __init__(self, schedules: dict[str, Lists], shape: Shape, comm: str, title: str):
        self.title = title
        self.schedules = schedules
        self.shape = shape
        self.comm = comm
        self.wrong = {name: self.error(each) for name, each in schedules.items()}
        height = 220 + 64 * shape.S
        self.heights = (height + 95, height)

    def error(self, each: Lists) -> ScheduleError | None:
        """What is wrong with the lists, or None."""
        S, M, v, place = self.shape
        try:
            validate(each, S, M, v, place=place, comm=self.comm)
        except ScheduleError as error:
            return error
        return None

    @cached_property
    def picture(self) -> Picture:
        """When the actions of the first schedule run; of a wrong one, in which order they are listed. Its words say all."""
        name, each = next(iter(self.schedules.items()))
        if self.wrong[name] is None:
            made = stages({name: simulate(each, place=self.shape.place)}, title=self.title)
        else:
            rows = [[(action, i, i + 1) for i, action in enumerate(row)] for row in each]
            made = stages({f"{name}, as listed": rows}, title=self.title)
        made.text = self.words()
        return made

    def words(self) -> str:
        """The lists of each schedule, and what is to be said of them."""
        lines = [self.title]
        for name, each in self.schedules.items():
            error = self.wrong[name]
            if error is None:
                run = simulate(each, place=self.shape.place)
                lines.append(f"{name}: time {run.time:g}, bubble {100 * run.bubble:.1f} %")
            else:
                lines.append(f"{name}: {error}")
            for stage, actions in enumerate(each):
                words = " ".join(map(str, actions))
                lines.append(f"  stage {stage}: {words} ({in_flight(actions)} activations at most)")
        return "\n".join(lines)

    @cached_property
    def page(self) -> str:
        """The whole page: an HTML document that needs nothing else."""
        faces = {kind: MEANING[word] for kind, word in ACTIONS.items()}
        data = {
            "shape": self.shape._asdict(),
            "comm": self.comm,
            "schedules": {
                name: [" ".join(map(str, actions)) for actions in each]
                for name, each in self.schedules.items()
            },
            "rules": {
                "kinds": KINDS,
                "nouns": NOUNS,
                "same": SAME_WORK,
                "needed": NEEDED,
                "form": form(),
            },
            "times": TIMES,
            "colors": {kind: (face, ink_on(face)) for kind, face in faces.items()},
            "imports": IMPORTS,
        }
        return document(
            "editor", ("rules.js", "editor.js"), data, title=self.title, summary=self.text
        )


def form() -> str:
    """How an action is written, in the words of `Action.parse`."""
    try:
        Action.parse("")
    except ValueError as error:
        return str(error).partition(": ")[2]
    raise AssertionError("an empty word is no action")
