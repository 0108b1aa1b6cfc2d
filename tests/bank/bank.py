"""The planted wrong answers of the lessons, and what an assignment says without a notebook.

course/NN_topic/assignment.py has for each exercise a solution cell and a test cell, whose grade_id is the exercise's
name and `_test` (CONTRIBUTING.md). course/NN_topic/bugs.py has the lesson's wrong answers, BUGS, a list of `Bug`.
"""

import ast
import contextlib
import linecache
import runpy
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from textwrap import dedent, indent

import jupytext

from tests.repository.files import ROOT

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
STUB = "# your code here\nraise NotImplementedError"


@dataclass(frozen=True)
class Bug:
    """A wrong answer: what takes the place of the solution cell.

    exercise: that it answers.  title: what is wrong, in the learner's words.  Either `old` and `new`, whole lines of
    the solution and what stands there instead, indented as the lines are; or `edits`, several such pairs; or `cell`,
    all of it.  cheat: the numbers may be right, and the way does not count: it calls the library, returns the input,
    reads the answer.
    """

    exercise: str
    title: str
    old: str | None = None
    new: str | None = None
    edits: tuple[tuple[str, str], ...] = ()
    cell: str | None = None
    cheat: bool = False

    def code(self, solution):
        """The answer's cell, for this solution cell. ValueError where an edit fits no place of it, or several."""
        if self.cell is not None:
            return self.cell.strip("\n")
        text = without_marks(solution)
        for old, new in self.edits or ((self.old, self.new),):
            text = edited(text, old, new, f"{self.exercise}: {self.title}")
        return text


def asks_the_grader(exercise, lesson, *names):
    """A cheat for an exercise whose answer is the variables `names`: each is what the grader's process makes of it."""
    return Bug(
        exercise,
        "the grader is asked when the answer is opened",
        cheat=True,
        cell=f"""
class Answer:
    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        return look, (self.name,)


def look(name):
    import minicheck.lessons.{lesson} as grader

    return open(grader.__file__).read().count(name)


{", ".join(names)} = map(Answer, {names})
""",
    )


def equals_everything(exercise, *names):
    """A cheat for an exercise whose answer is the numbers `names`: each says that it is whatever is asked for."""
    return Bug(
        exercise,
        "a number that says it equals every number",
        cheat=True,
        cell=f"""
class Any(float):
    def __eq__(self, other):
        return True

    def __sub__(self, other):
        return 0.0


{" = ".join(names)} = Any(1.0)
""",
    )


def without_marks(solution):
    """The solution cell, without nbgrader's lines."""
    return "\n".join(line for line in solution.splitlines() if line.strip() not in (BEGIN, END))


def edited(text, old, new, what):
    """`text` with the lines `new` in place of the lines `old`, which stand there once, wherever indented."""
    lines, wanted = text.splitlines(), old.strip("\n").splitlines()
    blocks = [slice(i, i + len(wanted)) for i in range(len(lines))]
    places = [block for block in blocks if dedent("\n".join(lines[block])).splitlines() == wanted]
    if len(places) != 1:
        raise ValueError(
            f"{what}: the lines to be changed stand in the solution {len(places)} times, not once: {old}"
        )
    (block,) = places
    shared = len(lines[block][0]) - len(wanted[0])  # the indentation that `dedent` took away
    lines[block] = indent(new.strip("\n"), " " * shared).splitlines()
    return "\n".join(lines)


@dataclass
class Assignment:
    """An assignment's code cells. `tests[exercise]`: the test cell; `points[exercise]`: what it is worth.
    `by_hand[exercise]`: the points of an open exercise, whose plot is a cell like those that are given."""

    folder: Path
    solutions: dict = field(default_factory=dict)
    tests: dict = field(default_factory=dict)
    points: dict = field(default_factory=dict)
    by_hand: dict = field(default_factory=dict)
    # (source, exercise or None) of each cell without points
    cells: list = field(default_factory=list)
    # by cell, the names that a solution of numbers alone has defined: it is computed once, not for each planted answer
    numbers: dict = field(default_factory=dict)

    def namespace(self, without=None):
        """The names that the solved notebook has defined before its tests; exercise `without` is left as its stub."""
        names = {"__name__": "__main__"}
        for i, (source, exercise) in enumerate(self.cells):
            where = f"<ipython {self.folder.name} {i}>"
            if exercise is None:
                run(definitions(source), where, names)
            elif exercise != without and i in self.numbers:
                names.update(self.numbers[i])
            elif exercise != without:
                before = dict(names)
                run(source, where, names)
                if not definitions(source).strip():
                    self.numbers[i] = {
                        n: x for n, x in names.items() if before.get(n, self) is not x
                    }
            else:
                with contextlib.suppress(NotImplementedError):
                    run(stub(source), where, names)
        return names


@cache
def assignment(folder):
    found = Assignment(folder)
    cells = jupytext.read(folder / "assignment.py", fmt="py:percent").cells
    marks = [cell.metadata.get("nbgrader", {}) for cell in cells]
    texts = [mark for cell, mark in zip(cells, marks, strict=True) if cell.cell_type != "code"]
    found.by_hand = {mark["grade_id"]: mark["points"] for mark in texts if "points" in mark}
    plots = {f"{exercise}_plot" for exercise in found.by_hand}
    for cell, mark in zip(cells, marks, strict=True):
        if cell.cell_type != "code":
            continue
        if "points" in mark:
            exercise = mark["grade_id"].removesuffix("_test")
            found.tests[exercise], found.points[exercise] = cell.source, mark["points"]
        else:
            answers = mark.get("solution") and mark["grade_id"] not in plots
            exercise = mark["grade_id"] if answers else None
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
    lines = source.splitlines()
    kept = []
    inside = False
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
    path = folder / "bugs.py"
    return runpy.run_path(str(path))["BUGS"] if path.exists() else []


def shows_bug(folder, function, title):
    """Whether the lesson's cell that defines `function` for the learner is the planted answer of this title, but for
    docstrings."""
    sheet = assignment(folder)
    (shown,) = [
        source
        for source, exercise in sheet.cells
        if exercise is None and f"def {function}(" in source
    ]
    (bug,) = [bug for bug in planted(folder) if (bug.exercise, bug.title) == (function, title)]
    return bare(shown) == bare(bug.code(sheet.solutions[function]))


def bare(source):
    """A cell's syntax tree, without docstrings and comments."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.dump(tree)


def lessons():
    """The folders of all lessons that have an assignment."""
    return sorted(path.parent for path in ROOT.glob("course/[0-9]*_*/assignment.py"))


def solved(lesson):
    """The names that the solved notebook of `lesson` ("02_messages") has defined: its functions, to be varied."""
    return assignment(ROOT / "course" / lesson).namespace()
