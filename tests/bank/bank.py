"""The planted wrong answers of the lessons, and what an assignment says without a notebook.

course/NN_topic/assignment.py has for each exercise a solution cell and a test cell, whose grade_id is the exercise's
name and `_test` (CONTRIBUTING.md). course/NN_topic/bugs/*.py begin with `\"""exercise: what is wrong\"""`.
"""

import ast
import contextlib
import linecache
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import jupytext

from tests.repository.files import ROOT

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
STUB = "# your code here\nraise NotImplementedError"


@dataclass(frozen=True)
class Planted:
    """A wrong answer: the file, the exercise that it answers, and what is wrong with it."""

    path: Path
    exercise: str
    why: str

    @property
    def cheat(self):
        return self.path.stem.startswith("cheat_")


@dataclass
class Assignment:
    """An assignment's code cells. `tests[exercise]`: the test cell; `points[exercise]`: what it is worth."""

    folder: Path
    solutions: dict = field(default_factory=dict)
    tests: dict = field(default_factory=dict)
    points: dict = field(default_factory=dict)
    cells: list = field(default_factory=list)  # (source, exercise or None) of each cell without points

    def namespace(self, without=None):
        """The names that the solved notebook has defined before its tests; exercise `without` is left as its stub."""
        names = {"__name__": "__main__"}
        for i, (source, exercise) in enumerate(self.cells):
            where = f"<ipython {self.folder.name} {i}>"
            if exercise is None:
                run(definitions(source), where, names)
            elif exercise != without:
                run(source, where, names)
            else:
                with contextlib.suppress(NotImplementedError):
                    run(stub(source), where, names)
        return names


@cache
def assignment(folder):
    found = Assignment(folder)
    for cell in jupytext.read(folder / "assignment.py", fmt="py:percent").cells:
        mark = cell.metadata.get("nbgrader", {})
        if cell.cell_type != "code":
            continue
        if "points" in mark:
            exercise = mark["grade_id"].removesuffix("_test")
            found.tests[exercise], found.points[exercise] = cell.source, mark["points"]
        else:
            exercise = mark["grade_id"] if mark.get("solution") else None
            found.cells.append((cell.source, exercise))
            if exercise:
                found.solutions[exercise] = cell.source
    return found


@cache
def definitions(source):
    """The imports, functions and classes of a cell: what a picture draws is not needed here."""
    kept = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    tree = ast.parse(source)
    lines = ["" for _ in source.splitlines()]
    for node in tree.body:
        if isinstance(node, kept):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            lines[first - 1 : node.end_lineno] = source.splitlines()[first - 1 : node.end_lineno]
    return "\n".join(lines)


def stub(source):
    """What the student gets: as nbgrader makes it."""
    lines, kept, inside = source.splitlines(), [], False
    for line in lines:
        if line.strip() == BEGIN:
            inside, indent = True, line[: len(line) - len(line.lstrip())]
            kept += [indent + part for part in STUB.splitlines()]
        elif line.strip() == END:
            inside = False
        elif not inside:
            kept.append(line)
    return "\n".join(kept)


def run(source, where, names):
    """Run a cell's text; `where` is the name under which messages show its lines."""
    linecache.cache[where] = (len(source), None, source.splitlines(keepends=True), where)
    exec(compiled(source, where), names)


compiled = cache(partial(compile, mode="exec"))  # each planted answer needs the cells anew


@cache
def planted(folder):
    """All planted answers of a lesson, in order."""
    found = []
    for path in sorted((folder / "bugs").glob("*.py")):
        exercise, _, why = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition(": ")
        found.append(Planted(path, exercise, why))
    return found


def lessons():
    """The folders of all lessons that have an assignment."""
    return sorted(path.parent for path in ROOT.glob("course/[0-9]*_*/assignment.py"))


def solved(lesson):
    """The names that the solved notebook of `lesson` ("02_messages") has defined: its functions, to be varied."""
    return assignment(ROOT / "course" / lesson).namespace()
