"""Exercises are checked from the command line.

    python -m minicheck
        all exercises of the course: which are right, and what is next
    python -m minicheck 06_buckets [--against SOLVED]
        the student's copy in work/, or the one in exercises/; or any notebook, by its path
        a line for each exercise, the points; exit code 0 if all are right, 1 if not, 2 if it cannot be checked
    python -m minicheck work [--renew NAME]
        what `make work` does: copy the assignments to work/, and say which have changed
    python -m minicheck grade SUBMITTED --assignment NAME [--jobs N] [--out DIR] …
        a class; exit code 0, 1 if a submission must be looked at by hand, 2 if nothing can be graded
    python -m minicheck --version
        which release of the course this is

docs/grading.md is the page for teachers.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from minidist import __version__

from . import work
from .grade import Run, Stopped, adopt_orphans, end_processes, questions
from .notebook import by_hand, examine
from .sandbox import descendants
from .submission import read
from .tables import Graded, earned, line, write_all
from .uploads import submissions


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    commands = {"grade": grade_class, "work": keep_work}
    if argv == ["--version"]:
        show(f"minidist {__version__}", sys.stdout)
        return 0
    if argv[:1] and argv[0] in commands:
        return commands[argv[0]](argv[1:])
    return check_notebook(argv) if argv else show_progress()


def show_progress() -> int:
    """All exercises, as they stand."""
    width = shutil.get_terminal_size((100, 24)).columns
    for text in work.overview(
        width=width, say=lambda name: show(f"(examining {name})", sys.stderr)
    ):
        show(text, sys.stdout)
    return 0


def keep_work(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m minicheck work",
        description="Copy the assignments to work/, where they are yours, and say which have changed since.",
    )
    parser.add_argument("--renew", metavar="NAME", help="put your answers into its new text")
    args = parser.parse_args(argv)
    try:
        if args.renew:
            old = work.renew(args.renew)
            show(f"{args.renew} has its new text, with your answers. As it was: {old}", sys.stdout)
        else:
            for text in work.take():
                show(text, sys.stdout)
    except (OSError, ValueError) as error:
        show(f"Nothing is changed: {error}", sys.stderr)
        return 2
    return 0


def check_notebook(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m minicheck",
        description="Check the exercises of a notebook. `python -m minicheck grade --help`: of a class.",
    )
    parser.add_argument(
        "notebook", type=Path, help="a path, or an assignment's name: 06_buckets, buckets or 06"
    )
    parser.add_argument(
        "--against",
        type=Path,
        help="take the questions from this notebook (solutions/NAME/NAME.ipynb)",
    )
    args = parser.parse_args(argv)
    path = (
        args.notebook if args.notebook.exists() else work.named(str(args.notebook)) or args.notebook
    )
    try:
        answered = read(path.resolve())
        asked = questions(path.stem, args.against)
        found, notes, *_ = examine(answered, asked, None)
    except Exception as error:
        why = str(error) if isinstance(error, OSError | ValueError) else repr(error)
        show(f"{path} cannot be checked: {why}", sys.stderr)
        return 2
    width = max((len(m.exercise) for m in found), default=0)
    for m in found:
        show(f"{m.exercise:<{width}}  {earned(m):g}/{m.points:g}  {m.wrong or 'right'}", sys.stdout)
    got, of = sum(map(earned, found)), sum(m.points for m in found)
    show(f"{'all':<{width}}  {got:g}/{of:g}", sys.stdout)
    for exercise, points in by_hand(asked).items():
        show(f"\n{exercise} is graded by hand, with up to {points:g} points more.", sys.stdout)
    if notes:
        show("\nRepaired before it was checked, in a copy:", sys.stdout)
    for note in notes:
        show(f"- {note}", sys.stdout)
    return int(got < of or not found)


def show(text: str, out: TextIO, end: str = "\n") -> None:
    """Print what may hold a student's words, on any terminal."""
    encoding = out.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), end=end, file=out, flush=True)


# ------------------------------------------------------------
# A class.


def grade_class(argv: list[str]) -> int:
    args = _parser().parse_args(argv)
    start = time.monotonic()
    others = descendants(os.getpid())
    adopt_orphans()
    handlers = {
        number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)
    }
    out = args.out or Path("graded") / args.assignment
    try:
        from . import notebook, sandbox

        asked = questions(args.assignment, args.against)
        found = submissions(args.submitted, args.assignment)
        if not found:
            raise ValueError(f"nobody has handed in {args.assignment} in {args.submitted}")
        engine = sandbox.choose(args.engine, args.seconds, trust=args.trust_submissions)
        progress = Progress(len(found), sys.stdout)
        run = Run(asked, out, notebook.mark, engine, args.jobs, args.again, progress.say)
        graded, changes = run.grade(found)
        write_all(
            out, args.assignment, args.canvas_column or args.assignment, graded, by_hand(asked)
        )
    except Stopped as stopped:
        print(
            f"\nStopped: {stopped.graded} of {len(found)} are graded, and the same command goes on from there.",
            file=sys.stderr,
            flush=True,
        )
        if stopped.stuck:
            os._exit(130)
        return 130
    except KeyboardInterrupt:
        print("\nStopped before anything was graded.", file=sys.stderr)
        return 130
    except (OSError, ValueError, KeyError) as error:
        print(f"{args.submitted} cannot be graded: {error}", file=sys.stderr)
        return 2
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        end_processes(others)
    seconds = time.monotonic() - start
    for text in summary(args.assignment, graded, changes, run.kept, seconds, by_hand(asked)):
        show(text, sys.stdout)
    show(f"Written: {out}/grades.csv, canvas.csv, moodle.csv, feedback/", sys.stdout)
    return int(any(one.failed for one in graded))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m minicheck grade",
        description="Grade what a class has handed in, each submission in a sandbox of its own.",
    )
    add = parser.add_argument
    add(
        "submitted",
        type=Path,
        help="a folder as nbgrader has it, or what Canvas or Moodle download",
    )
    add("--assignment", required=True, metavar="NAME", help="06_buckets, say")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="so many submissions at once")
    add("--out", type=Path, metavar="DIR", help="where marks go; graded/NAME if it is not given")
    add("--engine", choices=("bwrap", "podman", "docker"), help="what makes the sandboxes")
    add("--seconds", type=float, help="the limit of time for a submission")
    add("--again", nargs="+", default=[], metavar="STUDENT", help="grade these anew in any case")
    add("--against", type=Path, help="take the questions from this solved notebook")
    add("--canvas-column", metavar="TITLE", help="what Canvas calls it: 'Buckets (1234)'")
    add(
        "--trust-submissions",
        action="store_true",
        help="no sandbox: whatever is in a notebook runs as you, with all your files",
    )
    return parser


def _interrupt(*_) -> None:
    """The first Ctrl-C (or SIGTERM) ends the run; more of them do not disturb the ending."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # of SIG_IGN Python would say that it came too late
    raise KeyboardInterrupt


class Progress:
    """A line for each submission, and on a terminal a bar below."""

    def __init__(self, of: int, out: TextIO):
        self._of = of
        self._out = out
        self._bar = out.isatty()
        self._start = time.monotonic()
        self._lines = 0

    def say(self, done: int, graded: Graded) -> None:
        self._lines += 1
        points = "look at it" if graded.failed else f"{graded.points:g}/{graded.of:g}"
        odd = f"  {line('; '.join(graded.odd))}" if graded.odd else ""
        clear = "\r\x1b[K" if self._bar else ""
        show(
            f"{clear}{done:>{len(str(self._of))}}/{self._of}  {line(graded.owner.student):<24}  "
            f"{points:>7}  {graded.seconds:4.0f} s{odd}",
            self._out,
        )
        if self._bar and done < self._of:
            left = (time.monotonic() - self._start) / self._lines * (self._of - done)
            full = 30 * done // self._of
            bar = f"{'█' * full}{'·' * (30 - full)} {duration(left)} left"
            show(bar, self._out, end="")


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def summary(
    assignment: str,
    graded: Sequence[Graded],
    changes: Sequence[str],
    kept: int,
    seconds: float,
    open_points: dict[str, float],
) -> Iterator[str]:
    """What a teacher wants to know at the end, line by line."""
    points = [one.points for one in graded if not one.failed]
    yield ""
    yield f"{len(graded)} submissions of {assignment} in {duration(seconds)}" + (
        f"; {kept} of them were graded before, and have not changed." if kept else "."
    )
    if points:
        yield (
            f"Points: {sum(points) / len(points):.1f} of {graded[0].of:g} on average, "
            f"from {min(points):g} to {max(points):g}."
        )
    failed = [line(one.owner.student) for one in graded if one.failed]
    if failed:
        yield f"Not graded, look at them by hand: {', '.join(failed)}."
    for exercise, of in open_points.items():
        yield f"{exercise} is open: read the answers, and add up to {of:g} points yourself."
    odd = [one for one in graded if one.odd]
    if odd:
        yield f"Something was odd in {len(odd)}:"
        yield from (f"    {line(one.owner.student)}: {line('; '.join(one.odd))}" for one in odd)
    if changes:
        yield f"Marks that are not those of the last run ({len(changes)}):"
        yield from (f"    {found}" for found in changes)


if __name__ == "__main__":
    sys.exit(main())
