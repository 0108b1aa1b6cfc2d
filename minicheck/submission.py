"""A notebook as a student hands it in: read with care, and repaired before it is graded.

    read      ──▶   restored                                        ──▶   repaired
    a file          the release's cells, the student's answers in         the same as rows to run, for a process
                    their places: for nbgrader                            without nbgrader

Answers are found by what they define: the names that a test cell takes. nbgrader's marks decide only where
names do not. What counts for a student is this:

- What stood above a test cell in the student's notebook runs before that test, in the student's order; what
  stood below does not reach it. Who goes on with `seconds` for something else has lost nothing.
- Where the test cell is gone, or stands above its answer, what was defined last counts.
- An answer that is not written yet never hides one that is, wherever the two stand.
- A cell with a syntax error costs what it defines, and a cell that is lost costs nothing if the release has it.
- An open answer is a text that a teacher reads. It is found by its mark; where that is lost, or where the marked cell is
  as it was handed out, it is the first text of the student's own below the question.
- Cells that the release locks are the release's. If the student changed one that is code, that runs after it.
- The student's own test cells are not run, and calls of `check` in other cells are taken out.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import json
import os
import re
import stat
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

# ------------------------------------------------------------
# The file.


class Unreadable(ValueError):
    """A submission that is no notebook; the message tells the student why."""


MOST_BYTES = 20_000_000


def read(path: Path, within: Path | None = None) -> dict:
    """The notebook at `path`, of `contents`."""
    data = contents(path, within)
    try:
        notebook = json.loads(data)
    except (ValueError, RecursionError) as error:
        start = "it is empty" if not data.strip() else str(error)
        raise Unreadable(f"{path.name} is not a notebook, which is JSON: {start}") from None
    _cells(notebook)
    return notebook


def contents(path: Path, within: Path | None = None) -> bytes:
    """What a plain file has; neither it nor a folder below `within` (its own) may be a symbolic link."""
    within = within or path.parent
    *above, name = path.relative_to(within).parts
    with contextlib.ExitStack() as opened:
        place = os.open(within, os.O_RDONLY | os.O_DIRECTORY)
        opened.callback(os.close, place)
        for part in above:
            place = _opened(part, place, os.O_DIRECTORY)
            opened.callback(os.close, place)
        file = _opened(name, place, os.O_NONBLOCK)  # a pipe would wait for its writer
        opened.callback(os.close, file)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise Unreadable(f"{name} is not a regular file")
        return taken(open(file, "rb", closefd=False), name)


def taken(stream: IO[bytes], name: str) -> bytes:
    """All that is in a stream, which is closed."""
    with stream:
        data = stream.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise Unreadable(f"{name} has more than {MOST_BYTES:,} bytes: clear its outputs")
    return data


def _opened(name: str, folder: int, flags: int) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | flags, dir_fd=folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                raise Unreadable(f"{name} is a link, and links are not followed") from None
        raise Unreadable(f"{name} cannot be opened: {error.strerror}") from None


# ------------------------------------------------------------
# Its cells, of whatever shape.


MOST_CELLS = 2000
MOST_CHARACTERS = 400_000  # of all cells, without their outputs: the longest assignment has 20,000


DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Cell(NamedTuple):
    """A cell, and what of its source can be told without running it."""

    kind: str  # "code", "markdown" or "raw"
    text: str
    mark: dict  # nbgrader's, {} without
    python: str = ""  # a code cell's text without magics and calls of `check`
    shown: str = ""  # the same with the magics
    answers: frozenset = frozenset()  # the names that it defines
    stubs: frozenset = frozenset()  # the names that are there, but not written yet
    checked: frozenset | None = None  # the names that its checks take, if it has nothing else
    error: str = ""  # its syntax error

    @property
    def grade_id(self) -> str:
        return str(self.mark.get("grade_id", ""))

    @property
    def is_test(self) -> bool:
        return self.kind == "code" and bool(self.mark.get("grade")) and not self.is_solution

    @property
    def is_solution(self) -> bool:
        return bool(self.mark.get("solution"))

    @property
    def is_empty(self) -> bool:
        """Whether it has no answer of its own, only the place for one."""
        return not self.answers and bool(self.stubs) and not self.error


def _cells(notebook: object) -> list[dict]:
    """The cells of a notebook of format 4, or 3, where they lie in worksheets. Raises Unreadable without."""
    found = _list(notebook, "cells")
    if found is None:
        sheets = _list(notebook, "worksheets")
        found = sheets and [cell for sheet in sheets for cell in _list(sheet, "cells") or []]
    if found is None:
        raise Unreadable("it is no notebook: it has no list of cells")
    cells = [cell for cell in found if isinstance(cell, dict)]
    length = sum(len(_text(cell)) for cell in cells)
    if len(cells) > MOST_CELLS or length > MOST_CHARACTERS:
        raise Unreadable(
            f"a notebook has at most {MOST_CELLS:,} cells and {MOST_CHARACTERS:,} characters in them; "
            f"this one has {len(cells):,} and {length:,}"
        )
    return cells


def _list(value: object, key: str) -> list | None:
    """The list that a piece of JSON has under a key, if it has."""
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, list) else None


def _text(cell: dict) -> str:
    value = cell.get("source", cell.get("input", ""))
    if isinstance(value, list):
        value = "".join(line for line in value if isinstance(line, str))
    if not isinstance(value, str):
        return ""
    # Half a surrogate pair can be in JSON, but in no file.
    return re.sub("\r\n?", "\n", value).encode("utf-8", "replace").decode()


def _cell(raw: dict, kind: str | None = None) -> Cell:
    """The cell of a piece of JSON; `kind` is another one than it says."""
    kind = kind or (raw["cell_type"] if raw.get("cell_type") in ("code", "raw") else "markdown")
    metadata = raw.get("metadata")
    mark = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    mark = mark if isinstance(mark, dict) else {}
    text = _text(raw)
    if kind != "code":
        return Cell(kind, text, mark, shown=text)
    python = _without_magics(text)
    try:
        return _told(Cell(kind, text, mark, python))
    except SyntaxError as error:
        words = f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError):
        words = "Python cannot read it"
    names = re.findall(r"^(?:def |class )?(\w+)\s*[(:=]", text, re.MULTILINE)
    return Cell(kind, text, mark, python, text, stubs=frozenset(names), error=words)


def _told(cell: Cell) -> Cell:
    """A code cell with what its Python tells."""
    body = ast.parse(cell.python).body
    checks = [node for node in body if _is_check(node)]
    only_checks = bool(checks) and len(checks) == len(body)
    stubs = _stubs(body)
    answers = _names(_outside(_written(body))) - stubs
    return cell._replace(
        python=_without(checks, body, cell.python),
        shown=_without(checks, body, cell.text),
        answers=answers,
        stubs=_names(_outside(body)) - answers,
        checked=frozenset(wanted(cell.python)) if only_checks else None,
    )


def _without_magics(text: str) -> str:
    """The Python of a cell, line for line; what only IPython understands is left out."""
    if _parses(text):
        return text
    lines = text.split("\n")
    first = next((line for line in lines if line.strip()), "")
    if first.startswith("%%") and not re.match(r"%%(time|timeit|capture|prun)\b", first):
        return ""
    magic = re.compile(r"(\s*)(?:[%!?]|[\w, ]+=\s*[%!]|.*\w\?+\s*$)")
    found = [magic.match(line) for line in lines]
    plain = "\n".join(f"{m[1]}pass" if m else line for m, line in zip(found, lines, strict=True))
    return plain if _parses(plain) else textwrap.dedent(plain)


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


CHECK = re.compile(r"check(\.\w+)+")


def _is_check(node: ast.stmt) -> bool:
    """Whether a statement is `check.something(…)` and nothing else."""
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and bool(CHECK.fullmatch(ast.unparse(call.func)))


def _without(checks: list[ast.stmt], body: list[ast.stmt], text: str) -> str:
    """`text` with the lines made comments that have nothing but `checks`, which are some statements of its `body`."""
    lines = text.split("\n")
    others: set[int] = set()
    for node in {*body} - {*checks}:
        others.update(_lines(node))
    for node in checks:
        if others.isdisjoint(_lines(node)):
            for number in _lines(node):
                lines[number] = f"# {lines[number]}"
    return "\n".join(lines)


def _lines(node: ast.stmt) -> range:
    return range(node.lineno - 1, node.end_lineno or node.lineno)


def _outside(body: list) -> Iterator[ast.AST]:
    """All nodes that run with the cell itself: not those in functions and classes."""
    stack = [*body]
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, (*DEFINITIONS, ast.Lambda)):
            stack += ast.iter_child_nodes(node)


def _names(nodes: Iterable[ast.AST]) -> frozenset:
    """The names that nodes bind."""
    found = set()
    for node in nodes:
        if isinstance(node, DEFINITIONS):
            found.add(node.name)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[0])
    return frozenset(found)


def _written(body: list) -> list:
    """Without `name = None`, which keeps a place."""
    return [
        node
        for node in body
        if not isinstance(node, ast.Assign) or ast.unparse(node.value) != "None"
    ]


def _stubs(body: list) -> frozenset:
    """The functions and classes of a cell that are not written yet, and those that use one."""
    found: set[str] = set()
    for _ in range(2):
        for node in body:
            if isinstance(node, DEFINITIONS):
                used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
                if _is_stub(node) or used & found:
                    found.add(node.name)
    return frozenset(found)


def _is_stub(node: ast.stmt) -> bool:
    if isinstance(node, ast.Raise) and node.exc:
        return "NotImplementedError" in {getattr(n, "id", "") for n in ast.walk(node.exc)}
    return isinstance(node, DEFINITIONS) and any(map(_is_stub, node.body))


def wanted(source: str) -> list[str]:
    """The names that a test cell takes from the notebook."""
    nodes = [*ast.walk(ast.parse(source))]
    used = {n.id for n in nodes if isinstance(n, ast.Name)}
    own = _names(nodes) | {n.arg for n in nodes if isinstance(n, ast.arg)}
    return sorted(used - own - set(vars(builtins)) - {"check"} - {*whose(source)})


def whose(source: str) -> list[str]:
    """The names that a test cell takes if they are there: whose numbers it asks of, `of=STUDENT`."""
    words = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.keyword) and n.arg == "of"]
    return [n.value.id for n in words if isinstance(n.value, ast.Name)]


# ------------------------------------------------------------
# The repair.


class Row(NamedTuple):
    """One piece of code to run in order."""

    source: str
    wanted: list[str]  # packed after it: the answers of one test cell, and whose they are
    grade_id: str  # of that test cell; "" for a student's cell


class Repaired(NamedTuple):
    rows: list[Row]
    notes: list[str]  # what was repaired, a sentence each, for the feedback


STUB = "# your code here\nraise NotImplementedError"
TEXT_STUB = "*Your answer here.*"


def repaired(answered: dict, asked: dict) -> Repaired:
    """What to run of a submission, and which names to take where."""
    notebook, notes = restored(answered, asked)
    rows = []
    for raw in notebook["cells"]:
        if raw["cell_type"] == "code":
            cell = _cell(raw)
            if cell.is_test:
                rows.append(Row("", wanted(cell.text) + whose(cell.text), cell.grade_id))
            else:
                rows.append(Row(cell.python, [], ""))
    return Repaired(rows, notes)


def restored(answered: dict, asked: dict) -> tuple[dict, list[str]]:
    """The cells of `asked`, solved or as released, with the answers of `answered` in their places; the notes.

    Each cell with a mark of nbgrader is there once, in the release's order, and without outputs. Of the others
    those are there that the student still has. What the student added has no mark.
    """
    if answered == asked:
        return {**asked, "cells": [_blank(raw) for raw in _cells(asked)]}, []
    repair = _Repair(answered, asked)
    return {**asked, "cells": repair.merged()}, [*repair.notes()]


class _Repair:
    """A number i is a cell of the student's, j one of the release's."""

    def __init__(self, answered: dict, asked: dict):
        self.asked = asked
        self.raw = _cells(asked)
        self.release = [_cell(raw) for raw in self.raw]
        self.tests = [j for j, cell in enumerate(self.release) if cell.is_test]
        self.wanted = {j: frozenset(wanted(self.release[j].text)) for j in self.tests}
        self.names = frozenset().union(*self.wanted.values())
        self.cells = [_cell(raw) for raw in _cells(answered)]
        self.copies = self._find_copies()
        self.turned = self._read_code_in_texts(answered)
        self.places = {j: self._find_place(j) for j in self.tests}
        self.mains = self._find_mains()

    # ---- what the student's cells are

    def _find_copies(self) -> dict[int, int]:
        """{i: the j that it is a copy of, or stands for}; -1 for checks that are nobody's. Answers are no copies."""
        same: dict[str, list[int]] = {}
        marked = {}
        for j, cell in enumerate(self.release):
            if not cell.is_solution and cell.text.strip():
                same.setdefault(_plain(cell.text), []).append(j)
            if not cell.is_solution and cell.grade_id:
                marked[cell.grade_id] = j
        found = {}
        solutions = {cell.grade_id for cell in self.release if cell.is_solution}
        for i, cell in enumerate(self.cells):
            equal = [] if cell.grade_id in solutions else same.get(_plain(cell.text), [])
            j = marked.get(cell.grade_id, -1)
            if equal:
                found[i] = equal.pop(0) if len(equal) > 1 else equal[0]
            elif j >= 0 and (
                self.release[j].is_test or "code" not in (cell.kind, self.release[j].kind)
            ):
                found[i] = j
            elif cell.checked is not None:
                found[i] = next((t for t in self.tests if self.wanted[t] == cell.checked), -1)
        return found

    def _read_code_in_texts(self, answered: dict) -> list[int]:
        """Make those texts code that have an answer that no code has; which they are."""
        written = (self.cells[i].answers for i in self._answers_to(self.names))
        known = self.names & frozenset().union(*written)
        solutions = {
            cell.grade_id for cell in self.release if cell.is_solution and cell.kind == "code"
        }
        turned = []
        for i, raw in enumerate(_cells(answered)):
            if self.cells[i].kind != "code" and i not in self.copies:
                cell = _cell(raw, "code")
                if cell.answers & self.names - known or cell.grade_id in solutions:
                    self.cells[i] = cell
                    turned.append(i)
        return turned

    def _answers_to(self, names: frozenset) -> list[int]:
        """The student's cells that define one of `names`."""
        found = [i for i, cell in enumerate(self.cells) if cell.answers & names]
        return [i for i in found if i not in self.copies or self.copies[i] in self.tests]

    def _tests_of(self, j: int) -> list[int]:
        """The student's copies of test j."""
        return [i for i, copy in self.copies.items() if copy == j]

    def _find_place(self, j: int) -> int:
        """The last cell that runs before test j: the last copy of the test with all answers that there are."""
        answers = self._answers_to(self.wanted[j])
        needed = frozenset().union(*(self.cells[i].answers for i in answers)) & self.wanted[j]
        for place in reversed(self._tests_of(j)):
            above = [self.cells[i].answers for i in answers if i <= place]
            if needed <= frozenset().union(*above):
                return place
        return max([-1, *(answers or self._tests_of(j))])

    def _find_mains(self) -> dict[int, int]:
        """{solution j: the cell i that takes its mark}: the last one before the test that defines its names."""
        found = {}
        for j, cell in enumerate(self.release):
            if cell.is_solution:
                if cell.kind != "code":
                    found[j] = self._find_text(j)
                    continue
                names = self._names_of(j)
                places = [self.places[t] for t in self.tests if self.wanted[t] & names]
                answers = [i for i in self._answers_to(names) if i <= max(places)] if places else []
                found[j] = max(answers or self._attempts(cell, names) or [-1])
        return found

    def _find_text(self, j: int) -> int:
        """The student's text that answers open question j; -1 without."""
        question = self.release[j]
        unwritten = {"", TEXT_STUB, _plain(question.text)}
        above = max([i for i, copy in self.copies.items() if 0 <= copy < j], default=-1)
        others = {cell.grade_id for cell in self.release if cell.grade_id} - {question.grade_id}
        marked = [i for i, cell in enumerate(self.cells) if cell.grade_id == question.grade_id]
        own = [
            i
            for i, cell in enumerate(self.cells)
            if i > above
            and i not in self.copies
            and cell.kind != "code"
            and cell.grade_id not in others
            and not cell.mark.get(
                "locked"
            )  # a text of the release's, which the questions leave out
        ]
        written = [i for i in marked + own if _plain(self.cells[i].text) not in unwritten]
        return [*written, *marked, -1][0]

    def _names_of(self, j: int) -> frozenset:
        return (self.release[j].answers | self.release[j].stubs) & self.names

    def _attempts(self, solution: Cell, names: frozenset) -> list[int]:
        """The cells that have no answer of any kind, but the mark of `solution` or its names; rather those with text."""
        found = [
            i
            for i, cell in enumerate(self.cells)
            if (cell.grade_id == solution.grade_id or cell.stubs & names)
            and i not in self.copies
            and not cell.answers & self.names
        ]
        return [i for i in found if not self.cells[i].is_empty] or found

    # ---- the notebook

    def merged(self) -> list[dict]:
        """The release's cells in order, the student's own among them."""
        pending = self._own()
        out: list[dict] = []
        passed = 0
        for j, cell in enumerate(self.release):
            main = self.mains.get(j, -1)
            here = min([i for i, copy in self.copies.items() if copy == j], default=-1)
            names = self._names_of(j) if main >= 0 else frozenset()
            first = []
            for i in pending:
                due = self._slot(i) <= passed
                if cell.is_test:
                    take = due
                elif cell.is_solution:
                    take = i < main and (due or bool(self.cells[i].answers & names))
                else:
                    take = due and i < here and not (cell.grade_id and cell.kind == "code")
                if take:
                    first.append(i)
            out += [self._as_own(i) for i in first]
            pending = sorted({*pending} - {*first})
            passed += cell.is_test
            if cell.grade_id or here >= 0:
                out.append(self._of_release(j, main))
        return out + [self._as_own(i) for i in pending]

    def _own(self) -> list[int]:
        """The cells that the student added."""
        mains = {i for i in self.mains.values() if i >= 0}
        there = {self.cells[i].text for i in mains if self.cells[i].answers} | {"", TEXT_STUB}
        added = {*range(len(self.cells))} - {*self.copies} | {*self._answers_to(self.names)}
        found = []
        for i in sorted(added - mains):
            cell = self.cells[i]
            unwritten = cell.is_empty and cell.stubs & self.names
            if cell.text not in there and not unwritten:
                found.append(i)
        return found

    def _slot(self, i: int) -> int:
        """The number of the first test that i must stand before."""
        return next((n for n, j in enumerate(self.tests) if self.places[j] >= i), len(self.tests))

    def _as_own(self, i: int) -> dict:
        cell = self.cells[i]
        raw = {"cell_type": cell.kind, "metadata": {}, "source": cell.shown}
        if self.asked.get("nbformat_minor", 0) >= 5:
            raw["id"] = f"handed-in-{i}"
        return _blank(raw)

    def _of_release(self, j: int, main: int) -> dict:
        raw, cell = self.raw[j], self.release[j]
        if not cell.is_solution:
            return _blank(raw)
        source = cell.text
        if main >= 0:
            source = self.cells[main].shown
        elif cell.kind != "code":
            source = TEXT_STUB
        elif cell.answers & self.names or "### BEGIN SOLUTION" in source:
            source = STUB
        return _blank({**raw, "source": source})

    # ---- what is said of it

    def notes(self) -> Iterator[str]:
        """What was repaired, a sentence each."""
        ids = {cell.grade_id for cell in self.release if cell.grade_id}
        lost = not any(cell.grade_id in ids for cell in self.cells)
        if lost:
            yield "No cell had nbgrader's marks: the answers were found by what they define."
        for j, cell in enumerate(self.release):
            if cell.is_test:
                yield from self._notes_of_test(j)
            elif cell.is_solution:
                yield from self._notes_of_solution(j, lost)
            elif cell.grade_id and cell.kind == "code" and j not in self.copies.values():
                changed = any(mine.grade_id == cell.grade_id for mine in self.cells)
                what = "changed; it runs as it was, and then as you have it"
                yield f"The locked cell `{cell.grade_id}` was {what if changed else 'missing; it is there again'}."
        order = [j for j in self._order() if j >= 0]
        if order != sorted(order):
            yield "The cells stood in another order than in the release."

    def _order(self) -> list[int]:
        homes = {i: j for j, i in reversed(self.mains.items())} | self.copies
        return [homes[i] for i in sorted(homes) if i >= 0]

    def _notes_of_test(self, j: int) -> Iterator[str]:
        the_cell = f"The test cell `{self.release[j].grade_id}`"
        text = self.release[j].text
        copies = self._tests_of(j)
        if not copies:
            yield f"{the_cell} was missing; it is there again."
        if len(copies) > 1:
            yield f"{the_cell} was there {len(copies)} times; it is there once."
        if {_plain(self.cells[i].text) for i in copies} - {
            _plain(text)
        } and "HIDDEN TESTS" not in text:
            yield f"{the_cell} was changed; it is as it was."
        below = [i for i in self._answers_to(self.wanted[j]) if i > self.places[j]]
        again = frozenset().union(*(self.cells[i].answers for i in below)) & self.wanted[j]
        if again:
            names = ", ".join(f"`{n}`" for n in sorted(again))
            yield f"Below the test cell `{self.release[j].grade_id}` stands another {names}; the one above it counts."

    def _notes_of_solution(self, j: int, lost: bool) -> Iterator[str]:
        cell = self.release[j]
        main = self.mains[j]
        the_cell = f"The cell `{cell.grade_id}`"
        if main < 0:
            yield f"{the_cell} was missing, and no answer to it was found."
            return
        mine = self.cells[main]
        if mine.error and cell.kind == "code":
            yield f"{the_cell} is not Python ({mine.error}); the others count."
        if mine.grade_id != cell.grade_id and not lost:
            yield f"The answer `{cell.grade_id}` was found in a cell without its mark."
        if mine.kind != cell.kind or main in self.turned:
            yield f"{the_cell} was not a cell of {cell.kind}; it is one now."
        marked = sum(c.grade_id == cell.grade_id for c in self.cells)
        if marked > 1:
            yield f"{marked} cells had the mark `{cell.grade_id}`; all count, a later one over an earlier."


def _plain(text: str) -> str:
    """A text without the blanks at its lines' ends."""
    return "\n".join(line.rstrip() for line in text.strip().split("\n"))


def _blank(raw: dict) -> dict:
    """A cell without outputs."""
    source = {"source": _text(raw)}
    return (
        raw
        | source
        | ({"outputs": [], "execution_count": None} if raw["cell_type"] == "code" else {})
    )
