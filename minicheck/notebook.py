"""A whole notebook checked without nbgrader: `python -m minicheck exercises/02_messages/02_messages.ipynb`.

    this process                 the notebook's cells, in a process            each answer, in processes
    what is asked, the points ──▶ run in order; answers packed, unopened ──▶   examined by a guard (guard.py)

What is asked comes from the solved notebook of the same name under solutions/, by grade_id: the
notebook's own test cells are never run, so nothing is won by changing them, nor by putting something else in
the place of `check`, which the cells' process may have done. A test cell calls checks, `check.f(answers…)`,
with imports before them. The cells themselves run as the user, like any notebook that one opens.
"""

from __future__ import annotations

import ast
import base64
import builtins
import contextlib
import io
import json
import linecache
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from .exam import Packed, Wrong, pack

# ------------------------------------------------------------
# Runs the cells of a notebook in a process of its own, and packs the answers: `python -m minicheck.notebook FD`.
#
# It hears a JSON list of cells on its standard input, each with its `source` and the names that are `wanted`
# after it, and writes a line of JSON to the file descriptor FD for each cell: the packed answers, unopened,
# and the error if there was one. The cells are a student's: nothing that this process says is believed,
# beyond that these are the answers. A cell that fails does not stop the next, as when nbgrader runs them.


CELL_SECONDS = 30


def run_cells(fd: int) -> None:
    cells = json.load(sys.stdin)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    names = {
        "__name__": "__main__",
        "display": lambda *args, **kwargs: None,
        "get_ipython": lambda: None,
    }
    signal.signal(signal.SIGALRM, _too_long)
    with os.fdopen(fd, "w") as out:
        for number, cell in enumerate(cells):
            error = _run_cell(cell["source"], f"<ipython cell {number}>", names)
            print(
                json.dumps(
                    {
                        "error": error,
                        "answers": {name: _packed(name, names) for name in cell["wanted"]},
                    }
                ),
                file=out,
                flush=True,
            )
    os._exit(0)


def _too_long(*_):
    raise TimeoutError(f"the cell takes longer than {CELL_SECONDS} s")


def _run_cell(source: str, where: str, names: dict) -> str | None:
    """Run one cell; magics and shell lines are left out. Returns its error in a line, None without."""
    source = "\n".join(
        "" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines()
    )
    linecache.cache[where] = (len(source), None, source.splitlines(keepends=True), where)
    signal.alarm(CELL_SECONDS)
    try:
        exec(compile(source, where, "exec"), names)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    return None


def _packed(name: str, names: dict) -> dict | None:
    """An answer as JSON can carry it; None if there is no such name."""
    if name not in names:
        return None
    try:
        packed = pack(name, names[name])
    except Wrong as error:
        return {"error": str(error)}
    return {"data": base64.b64encode(packed.data).decode(), "sources": packed.sources}


# ------------------------------------------------------------
# The marks: what the solved notebook asks, of the answers that the cells' process has packed.


ROOT = Path(__file__).resolve().parents[1]


class Mark(NamedTuple):
    """An exercise: its test cell's name, what it is worth, the message of a wrong answer (None: it is right)."""

    grade_id: str
    points: float
    wrong: str | None

    @property
    def exercise(self) -> str:
        """`all_reduce`, of the test cell `all_reduce_test`."""
        return self.grade_id.removesuffix("_test")


def solved(notebook: Path) -> Path:
    """The solved notebook that belongs to `notebook`. FileNotFoundError if there is none."""
    path = ROOT / "solutions" / notebook.stem / notebook.name
    if not path.exists():
        raise FileNotFoundError(
            f"there is no solutions/{notebook.stem}/{notebook.name} to take the questions from"
        )
    return path


def check(notebook: Path, questions: Path | None = None) -> list[Mark]:
    """The mark of every exercise of `notebook`; `questions` is the notebook to take test cells and points from."""
    asked = json.loads((questions or solved(notebook)).read_text(encoding="utf-8"))
    return marks(json.loads(notebook.read_text(encoding="utf-8")), asked)


def marks(answered: dict, asked: dict) -> list[Mark]:
    """The same for two notebooks as JSON."""
    tests = {_grade_id(cell): cell for cell in asked["cells"] if _nbgrader(cell).get("grade")}
    wanted = {grade_id: _names(_source(cell)) for grade_id, cell in tests.items()}
    found, errors = _answers([c for c in answered["cells"] if c["cell_type"] == "code"], wanted)
    return [
        Mark(g, _nbgrader(c)["points"], _wrong(_source(c), found.get(g), errors))
        for g, c in tests.items()
    ]


def _nbgrader(cell: dict) -> dict:
    return cell["metadata"].get("nbgrader", {})


def _grade_id(cell: dict) -> str:
    return _nbgrader(cell).get("grade_id", "")


def _source(cell: dict) -> str:
    return "".join(cell["source"])


def asks(source: str) -> bool:
    """Whether a test cell asks `check`; what a plain assert says cannot be examined outside its kernel."""
    return any(isinstance(n, ast.Name) and n.id == "check" for n in ast.walk(ast.parse(source)))


def _names(source: str) -> list[str]:
    """The names that a test cell takes from the notebook."""
    nodes = list(ast.walk(ast.parse(source)))
    own = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    used = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return sorted(used - own - set(vars(builtins)) - {"check"})


def _answers(cells: list[dict], wanted: dict[str, list[str]]) -> tuple[dict, list[str]]:
    """Run the cells: the packed answers at each test cell's place (the end, if it is gone), and all errors."""
    rows = [
        {"source": "", "wanted": wanted[_grade_id(c)], "id": _grade_id(c)}
        if _grade_id(c) in wanted
        else {"source": _source(c), "wanted": [], "id": ""}
        for c in cells
    ]
    rows += [
        {"source": "", "wanted": wanted[g], "id": g}
        for g in wanted
        if g not in {row["id"] for row in rows}
    ]
    found: dict[str, dict] = {}
    errors: list[str] = []
    for row, line in zip(rows, _run_cells(rows), strict=False):
        errors += [line["error"]] if line["error"] else []
        found.setdefault(row["id"], line["answers"])
    return found, errors


def _run_cells(rows: list[dict]):
    """The lines that the cells' process writes, as they come; it is ended when it is silent for too long."""
    reads, writes = os.pipe()
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-m", "minicheck.notebook", str(writes)],
        stdin=subprocess.PIPE,
        pass_fds=[writes],
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": path, "MPLBACKEND": "Agg"},
    )
    os.close(writes)
    with process, os.fdopen(reads, "rb", buffering=0) as lines:
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(json.dumps(rows).encode())
        held = b""
        while select.select([lines], [], [], CELL_SECONDS + 30)[0] and (
            part := lines.read(1 << 20)
        ):
            *whole, held = (held + part).split(b"\n")
            yield from map(json.loads, whole)
        process.kill()


def _wrong(source: str, answers: dict | None, errors: list[str]) -> str | None:
    """What is wrong with the answers to one test cell."""
    if answers is None:
        return "a cell before it ended the whole process, or took too long"
    missing = [name for name, answer in answers.items() if answer is None]
    if missing:
        return f"{', '.join(missing)}: not defined" + (
            f". A cell above failed: {errors[0]}" if errors else ""
        )
    refused = [answer["error"] for answer in answers.values() if "error" in answer]
    if refused:
        return refused[0]
    import minicheck as check

    names = {n: Packed(base64.b64decode(a["data"]), a["sources"]) for n, a in answers.items()} | {
        "check": check
    }
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            exec(compile(source, "<test>", "exec"), names)
        except Wrong as wrong:
            return str(wrong)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        run_cells(int(sys.argv[1]))
