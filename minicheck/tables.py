"""What is written of a graded class: grades.csv, canvas.csv, moodle.csv, and a page for each student.

Names and words are students': no cell is a formula, and no text moves a cursor or turns the reading direction.
docs/grading.md says where the columns come from.
"""

from __future__ import annotations

import csv
import hashlib
import html
import io
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from .notebook import Mark, plain
from .uploads import Owner

FORMULA = tuple("=+-@＝＋－＠")
BY_HAND = "your teacher reads it, and grades it by hand"


class Graded(NamedTuple):
    """A submission's marks, what was repaired in it, what was odd; `failed`: it must be looked at by hand."""

    owner: Owner
    marks: list[Mark]
    notes: list[str]
    odd: list[str]
    failed: bool
    seconds: float

    @property
    def points(self) -> float:
        return sum(map(earned, self.marks))

    @property
    def of(self) -> float:
        return sum(mark.points for mark in self.marks)


def earned(mark: Mark) -> float:
    return mark.points * (mark.share if mark.wrong else 1.0)


def line(text: str) -> str:
    return " ".join(plain(text).split())


def cell(text: str) -> str:
    """Text that a spreadsheet does not take for a formula."""
    text = plain(text)
    return f"'{text}" if text.lstrip().startswith(FORMULA) else text


def write(path: Path, text: str) -> None:
    """Write `text` at once or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8", newline="")
    part.replace(path)


def write_all(
    out: Path,
    assignment: str,
    column: str,
    graded: Sequence[Graded],
    open_points: dict[str, float],
) -> None:
    """All tables and pages, into the folder `out`; `column` is what Canvas calls the assignment.

    open_points: of each exercise that a teacher grades by hand; it has a row in grades.csv, without points.
    """
    write(out / "grades.csv", _table(_grades(graded, open_points)))
    write(out / "canvas.csv", _table(_canvas(column, graded)))
    write(out / "moodle.csv", _table(_moodle(graded)))
    for one in graded:
        write(
            out / "feedback" / f"{file_name(one.owner.student)}.md",
            feedback(assignment, one, open_points),
        )


def _table(rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def _grades(graded: Sequence[Graded], open_points: dict[str, float]) -> Iterable[Sequence[str]]:
    yield ("student", "exercise", "points", "of", "words", "oddities")
    for one in graded:
        student, odd = cell(one.owner.student), cell("; ".join(map(line, one.odd)))
        for mark in one.marks:
            points = "" if one.failed else f"{earned(mark):g}"
            words = cell(mark.wrong or "right")
            yield (student, cell(mark.exercise), points, f"{mark.points:g}", words, odd)
        for exercise, of in open_points.items():
            yield (student, cell(exercise), "", f"{of:g}", BY_HAND, odd)


def _canvas(column: str, graded: Sequence[Graded]) -> Iterable[Sequence[str]]:
    yield ("Student", "ID", "SIS Login ID", "Section", column)
    yield ("    Points Possible", "", "", "", f"{max((one.of for one in graded), default=0):g}")
    for one in graded:
        if one.failed:  # Canvas and Moodle keep what they have
            continue
        if one.owner.platform == "canvas":
            yield (cell(one.owner.name), one.owner.number, "", "", f"{one.points:g}")
        else:
            student = cell(one.owner.student)
            yield (student, "", student, "", f"{one.points:g}")


def _moodle(graded: Sequence[Graded]) -> Iterable[Sequence[str]]:
    modified = "Last modified (grade)"
    yield ("Identifier", "Full name", "Username", "Grade", modified, "Feedback comments")
    for one in graded:
        if one.failed:
            continue
        points, words = f"{one.points:g}", cell(html.escape("\n".join(_words(one)), quote=False))
        comment = words.replace("\n", "<br>")
        if one.owner.platform == "moodle":
            number, name = f"Participant {one.owner.number}", cell(one.owner.name)
            yield (number, name, "", points, "-", comment)
        else:
            yield ("", "", cell(one.owner.student), points, "-", comment)


def _words(one: Graded) -> Iterable[str]:
    """What a student reads, a line for each exercise, and what was repaired."""
    for mark in one.marks:
        words = line(mark.wrong or "right")
        yield f"{line(mark.exercise)}: {earned(mark):g} of {mark.points:g}. {words}"
    yield from map(line, one.notes)


def file_name(student: str) -> str:
    """A name for a file of a student's, of letters, digits, spaces and .-_ only; another for each student."""
    safe = re.sub(r"[^\w .-]+", "_", student).lstrip(". ")[:80].rstrip()
    if safe == student:
        return safe
    return f"{safe}-{hashlib.sha256(os.fsencode(student)).hexdigest()[:8]}"


def feedback(assignment: str, one: Graded, open_points: dict[str, float]) -> str:
    """The page of a student, as Markdown; words stand in indented blocks, where nothing is markup."""
    if one.failed:
        return f"# {assignment}\n\nNot graded yet: your teacher will look at it.\n"
    parts = [f"# {assignment}: {one.points:g} of {one.of:g} points"]
    for mark in one.marks:
        words = plain(mark.wrong or "right").splitlines()
        parts.append(f"## {line(mark.exercise)}: {earned(mark):g} of {mark.points:g}")
        parts.append("\n".join(f"    {words_line}" for words_line in words))
    for exercise, of in open_points.items():
        parts.append(f"## {line(exercise)}: of {of:g}\n\n    {BY_HAND}")
    if one.notes:
        parts.append("## What was repaired in your notebook before it was graded")
        parts += [f"    {line(note)}" for note in one.notes]
    if one.odd:
        parts.append("## What was odd, and your teacher reads, too")
        parts += [f"    {line(odd)}" for odd in one.odd]
    return "\n\n".join(parts) + "\n"
