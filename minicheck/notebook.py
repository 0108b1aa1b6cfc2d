"""A whole notebook checked without nbgrader: `python -m minicheck exercises/02_messages/02_messages.ipynb`.

    this process                 the notebook's cells, in a process            each answer, in processes
    what is asked, the points ──▶ run in order; answers packed, unopened ──▶   examined by a guard (guard.py)

What is asked comes from `questions/` of this package, by grade_id: the
notebook's own test cells are never run, so nothing is won by changing them, nor by putting something else in
the place of `check`, which the cells' process may have done. A test cell calls checks, `check.f(answers…)`,
with imports before them.

On a student's own machine the cells run as the user, like any notebook that one opens. What others have handed in
(`mark`) runs in sandboxes: the cells in one, the answers in another.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import math
import multiprocessing
import os
import re
import subprocess
import sys
import time
import traceback
import unicodedata
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from torch import Tensor

from .cells import READY
from .exam import Exam, Packed, Prediction, Wrong, decode, encode, formed
from .guard import Nursery, examined
from .pipe import Pipe, Silent
from .sandbox import Child, Inside, Sandbox
from .submission import Row, Unreadable, read, repaired, wanted

# ------------------------------------------------------------
# The answers: what the cells' process has packed, cell by cell.


CELL_SECONDS = 30
START = 60.0
GRACE = 15.0  # seconds for what a cell's process does besides
ENDED = "the cell ended the whole process"
GARBLED = "something other than the cell's answers came out of its process"


class Found(NamedTuple):
    """What the cells gave: for each test cell {name: the packed answer, what is wrong with it, or None if there is none},
    and the error of the cell itself, the errors of all cells, and what was odd."""

    answers: dict[str, dict[str, Packed | str | None]]
    failed: dict[str, str | None]
    errors: list[str]
    odd: list[str]


def run_cells(rows: list[Row], start: Callable[[], Child], seconds: float, until: float) -> Found:
    """Run the rows in processes that `start` begins, until a point in time.

    A cell that is silent for longer than it may be, or ends its process, is lost: those before it run again in another
    process, and those after it go on there.
    """
    found = Found({}, {}, [], [])
    lost: set[int] = set()
    reached = 0
    while reached < len(rows) and time.monotonic() < until:
        with start() as child:
            for number, said in enumerate(_replies(rows, lost, child, seconds)):
                if isinstance(said, str):
                    lost.add(number)
                if number == reached:
                    _take(found, rows[number], said)
                    reached += 1
        found.odd.extend(child.odd)
    return found


def _replies(rows: list[Row], lost: set[int], child: Child, seconds: float) -> Iterator[dict | str]:
    """What the process says of each row; instead, of the one that it does not survive, why."""
    cells = [dict(source=row.source, wanted=row.wanted) for row in rows]
    for number in lost:
        cells[number] = dict(source="", wanted=[])
    child.line.send(encode(cells), START)
    if decode(child.line.receive(START)) != READY:
        raise RuntimeError("the process for a notebook's cells does not start as it should")
    try:
        for _ in rows:
            said = decode(child.line.receive(seconds + GRACE))
            if not isinstance(said, dict):
                raise ValueError
            yield said
    except Silent:
        yield f"the cell takes longer than {seconds:g} s"
    except (EOFError, OSError):
        yield ENDED
    except ValueError:
        yield GARBLED


def _take(found: Found, row: Row, said: dict | str) -> None:
    """Write down what a process said of a row, as far as it has the form that it must have."""
    if isinstance(said, str):
        said = {"error": said, "odd": [said]}
    error = said.get("error") if isinstance(said.get("error"), str) else None
    if error:
        found.errors.append(error)
    if isinstance(said.get("odd"), list):
        found.odd.extend(str(words)[:200] for words in said["odd"][:3])
    if row.grade_id:
        found.failed[row.grade_id] = error
        answers = said.get("answers")
        given = answers if isinstance(answers, dict) else {}
        found.answers[row.grade_id] = {name: _answer(given.get(name)) for name in row.wanted}


def _answer(given) -> Packed | str | None:
    if not isinstance(given, dict):
        return None
    if isinstance(given.get("error"), str):
        return given["error"]
    data, number, sources = given.get("data"), given.get("number"), given.get("sources")
    if (
        not isinstance(data, Tensor)
        or not isinstance(number, Tensor)
        or not formed_sources(sources)
    ):
        return None
    return Packed(data.numpy().tobytes(), sources, number.numpy().tobytes())


def formed_sources(sources) -> bool:
    return isinstance(sources, dict) and all(
        isinstance(file, str) and formed(lines, [str]) for file, lines in sources.items()
    )


# ------------------------------------------------------------
# The marks: what is asked, of the answers.


ROOT = Path(__file__).resolve().parents[1]


class Mark(NamedTuple):
    """An exercise: its test cell's name, what it is worth, the message of a wrong answer (None: it is right), and the share
    of the points that the answer earns all the same."""

    grade_id: str
    points: float
    wrong: str | None
    share: float = 0.0

    @property
    def exercise(self) -> str:
        """`all_reduce`, of the test cell `all_reduce_test`."""
        return self.grade_id.removesuffix("_test")


class Marked(NamedTuple):
    """What came of a submission. notes: what was repaired in it.  odd: what it did, or was done about it, that a teacher
    may want to know of.  whose: the name whose numbers its predictions are of."""

    marks: list[Mark]
    notes: list[str]
    odd: list[str]
    whose: str = ""


ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
LONGEST = 4000  # characters that are said of an exercise


def plain(text: str) -> str:
    """A stranger's text without escapes, control characters and invisible ones, as lines, and no longer than `LONGEST`."""
    text = ESCAPES.sub("", text[: 2 * LONGEST].replace("\r\n", "\n").expandtabs(4))
    kept = [c for c in text if c == "\n" or unicodedata.category(c) not in ("Cc", "Cf", "Cs")]
    return "".join(kept)[:LONGEST]


def mark(
    submission: Path, questions: dict, sandbox: Sandbox | None, within: Path | None = None
) -> Marked:
    """What somebody has handed in: whatever it does, each exercise gets its mark and words, within the sandbox's time.

    questions: the released or solved notebook as JSON.  sandbox: None for a submission that one trusts.  within: the
    folder below which nothing on the way to the submission may be a link; its own, if none is given.
    It is judged in a process of its own, as a World is alone in one: so several can be marked at once.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["minicheck"])
    hears, says = context.Pipe(duplex=False)
    process = context.Process(
        target=_say_marks, args=(says, submission, questions, sandbox, within)
    )
    process.start()
    says.close()
    try:
        said = hears.recv()
    except EOFError:
        process.join()
        said = f"the judge ended, with exit code {process.exitcode}"
    finally:
        hears.close()
        process.kill()
        process.join()
    if isinstance(said, str):
        raise RuntimeError(said)
    return said


def _say_marks(says: Connection, *asked) -> None:
    try:
        says.send(judged(*asked))
    except Exception as error:
        says.send("".join(traceback.format_exception(error))[-2000:])


def judged(
    submission: Path, questions: dict, sandbox: Sandbox | None, within: Path | None = None
) -> Marked:
    """`mark`, in this process."""
    try:
        answered = read(submission, within)
    except Unreadable as error:
        tests = _tests(questions).items()
        return Marked([Mark(g, _points(c), str(error)) for g, c in tests], [], ["unreadable"])
    return examine(answered, questions, sandbox)


def examine(answered: dict, questions: dict, sandbox: Sandbox | None) -> Marked:
    """The same of a notebook that has been read."""
    if sandbox is None:
        return _marked(answered, questions, at_home, minicheck(), math.inf)
    until = time.monotonic() + sandbox.limits.seconds
    forbidden = {name for exam in _exams(questions) for name in exam.forbidden}
    cells = "minicheck.cells", "serve"
    start = partial(sandbox.start, cells, tuple(sorted(forbidden)), CELL_SECONDS)
    with Examiner(sandbox) as examiner:
        return _marked(answered, questions, start, examiner, until)


def minicheck() -> ModuleType:
    """The package, which imports this file."""
    return importlib.import_module(__package__)


def _marked(
    answered: dict, asked: dict, start: Callable[[], Child], check: Any, until: float
) -> Marked:
    """check: what test cells call by this name. What a test cell of plain asserts says must be believed: it runs beside
    the answers."""
    rows, notes = repaired(answered, asked)
    asserts = {g: source_of(cell) for g, cell in _tests(asked).items() if not asks(source_of(cell))}
    rows = [row._replace(source=asserts.get(row.grade_id, row.source)) for row in rows]
    found = run_cells(rows, start, CELL_SECONDS, until)
    found.odd.extend(inspected(row.source) for row in rows)
    said = []
    for grade_id, cell in _tests(asked).items():
        wrong: Wrong | str | None
        if time.monotonic() > until:
            wrong = "it was not examined: the notebook has taken all the time that it may take"
        else:
            wrong = _wrong(source_of(cell), found.answers.get(grade_id), found.errors, check)
            wrong = wrong or found.failed[grade_id]
        share = getattr(wrong, "share", 0.0)
        words = wrong and (plain(str(wrong)).strip() or "it is wrong")
        said.append(Mark(grade_id, _points(cell), words, share))
    odd = map(plain, filter(None, [*found.odd, *getattr(check, "odd", [])]))
    return Marked(said, notes, list(dict.fromkeys(odd)), _whose(found))


def _whose(found: Found) -> str:
    """The name that a notebook gives as `STUDENT`, or ""."""
    for answers in found.answers.values():
        packed = answers.get("STUDENT")
        if isinstance(packed, Packed):
            with contextlib.suppress(ValueError):
                name = decode(packed.number)
                return plain(name)[:100] if isinstance(name, str) else ""
    return ""


# Names and attributes by which one looks into an interpreter, or changes it.
INSIDES = frozenset(
    [
        "sys",
        "gc",
        "inspect",
        "ctypes",
        "threading",
        "_thread",
        "concurrent",
        "multiprocessing",
        "subprocess",
        "importlib",
        "builtins",
        "marshal",
        "pickle",
        "tracemalloc",
        "signal",
        "socket",
        "exec",
        "eval",
        "compile",
        "globals",
        "__import__",
        "__builtins__",
    ]
)
WITHIN = frozenset(
    [
        "__reduce__",
        "__reduce_ex__",
        "__subclasses__",
        "__globals__",
        "__code__",
        "__closure__",
        "__builtins__",
        "_getframe",
        "f_back",
        "f_locals",
        "f_globals",
        "tb_frame",
        "gi_frame",
    ]
)


def inspected(source: str) -> str:
    """What a teacher should know of a cell before believing what was measured while it ran, or ""."""
    try:
        nodes = [*ast.walk(ast.parse(source))]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""  # a magic, or no Python
    names, attributes = set(), set()
    for node in nodes:
        match node:
            case ast.Name(id=name):
                names.add(name)
            case ast.alias(name=name) | ast.ImportFrom(module=str(name)):
                names.update(name.split("."))
            case ast.Attribute(attr=name) | ast.FunctionDef(name=name):
                attributes.add(name)
    touched = sorted(names & INSIDES | attributes & WITHIN)
    return f"an answer has {', '.join(touched)}: look at it by hand" if touched else ""


def _exams(asked: dict) -> list[Exam]:
    """The examinations that the test cells call."""
    found = []
    for cell in _tests(asked).values():
        for node in ast.walk(ast.parse(source_of(cell))):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "check"
            ):
                found.append(getattr(minicheck(), node.attr).exam)
    return found


def _tests(asked: dict) -> dict[str, dict]:
    return {grade_id_of(cell): cell for cell in asked["cells"] if is_test(cell)}


def is_test(cell: dict) -> bool:
    """Whether a cell asks `check`: it has points, and no answer in it."""
    mark = nbgrader_of(cell)
    return bool(mark.get("grade")) and not mark.get("solution")


def by_hand(asked: dict) -> dict[str, float]:
    """The points of each exercise that has an open answer, which a teacher reads and grades."""
    marks = [nbgrader_of(cell) for cell in asked["cells"]]
    return {m["grade_id"]: m["points"] for m in marks if m.get("grade") and m.get("solution")}


def _points(cell: dict) -> float:
    return nbgrader_of(cell)["points"]


def nbgrader_of(cell: dict) -> dict:
    return cell["metadata"].get("nbgrader", {})


def grade_id_of(cell: dict) -> str:
    return nbgrader_of(cell).get("grade_id", "")


def source_of(cell: dict) -> str:
    return "".join(cell["source"])


def asks(source: str) -> bool:
    """Whether a test cell asks `check`."""
    return any(isinstance(n, ast.Name) and n.id == "check" for n in ast.walk(ast.parse(source)))


def _wrong(source: str, answers: dict | None, errors: list[str], check) -> Wrong | str | None:
    """What is wrong with the answers to one test cell."""
    if answers is None:
        return "a cell before it ended the whole process, or took too long"
    missing = [name for name in wanted(source) if answers[name] is None]
    if missing:
        return f"{', '.join(missing)}: not defined" + (
            f". A cell above failed: {errors[0]}" if errors else ""
        )
    for answer in answers.values():
        if isinstance(answer, str):
            return answer
    if not asks(source):
        return None
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            exec(compile(source, "<test>", "exec"), {**answers, "check": check})
        except Wrong as wrong:
            return wrong
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return None


# ------------------------------------------------------------
# Where cells and answers run: on one's own machine, or in a sandbox.


@contextlib.contextmanager
def at_home() -> Iterator[Child]:
    """A process for cells that may do whatever its user may do."""
    asked, ask = os.pipe()
    told, tell = os.pipe()
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-m", "minicheck.cells", str(asked), str(tell)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[asked, tell],
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": path, "MPLBACKEND": "Agg"},
    )
    os.close(asked)
    os.close(tell)
    with Child(process, Pipe(told, ask)) as child:
        yield child


class Examiner:
    """What test cells call `check` where answers are examined in a sandbox, which is made when it is first needed.

    A process in it loads examinations and forks a nursery for each. Where an answer has brought it down, there is a new
    one for the next."""

    def __init__(self, sandbox: Sandbox):
        self._sandbox = sandbox
        self._inside: Inside | None = None
        self.odd: list[str] = []

    def __enter__(self) -> Examiner:
        return self

    def __exit__(self, *_) -> None:
        self._leave()

    def __getattr__(self, name: str) -> Callable[..., None]:
        return partial(self._ask, getattr(minicheck(), name).exam)

    def _ask(self, exam: Exam, *answers: Packed, of: Packed | None = None) -> None:
        """Raise Wrong unless the answers are right."""
        if isinstance(exam, Prediction):
            student = of.number if of else encode(None)
            exam.compare([answer.number for answer in answers], student)
            return
        sources = {file: lines for answer in answers for file, lines in answer.sources.items()}
        if self._inside is None:
            self._inside = self._sandbox.start(("minicheck.examinee", "zygote"), examines=True)
        nursery = Nursery(exam.name, self._inside.line, self._inside.process.pid)
        try:
            nursery.ask("exam", exam, seconds=60.0)
            wrong = examined(exam, nursery, [answer.data for answer in answers], sources)
            nursery.leave()
        except BaseException:  # what it serves now, nobody knows
            self._leave()
            raise
        if wrong is not None:
            raise wrong

    def _leave(self) -> None:
        if self._inside is not None:
            self._inside.close()
            self.odd += self._inside.odd
            self._inside = None
