"""What a hostile submission is, and the small assignment that it pretends to answer.

Two exercises of lesson 02: `shift`, a function, and `predict`, four numbers. Both are solved unless the submission says
otherwise. Its cells find in `OUT` what a well-informed attacker knows of the machine (tests/hostile/outside.py), and do
their worst only where `boxed()` holds: a box that leaks is told by a file, not by a machine that is gone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tests.bank.bank import ROOT, assignment, without_marks

LESSON = "02_messages"
EXERCISES = ("shift", "predict")
ALL = frozenset(EXERCISES)
NONE: frozenset[str] = frozenset()
SHIFT, PREDICT = frozenset(["shift"]), frozenset(["predict"])
UNSET = "messages = nbytes = seconds = naive_nbytes = None"


class Hostile(NamedTuple):
    """A submission that means harm.

    tries: what, in one sentence.  before: a cell before all others, or several.  after: a cell behind all others.
    shift, predict: a cell in place of the solution.  file: writes the submission itself, `file(path, notebook, out)`.
    keeps, loses: exercises that must, and must not, earn their points; the others may do either.  says: a pattern that
    must be found in what is said of it, whatever the case.  seconds: within which it must be marked.
    """

    name: str
    tries: str
    before: str | list[str] = ""
    shift: str = ""
    predict: str = ""
    after: str = ""
    file: Callable[[Path, dict, dict], None] | None = None
    keeps: frozenset[str] = NONE
    loses: frozenset[str] = NONE
    says: str = ""
    seconds: float = 180.0

    def cells_before(self) -> list[str]:
        return [self.before] if isinstance(self.before, str) else self.before


PREAMBLE = """\
import os

OUT = {out!r}
TOKEN = OUT["token"]


def boxed():
    \"\"\"Whether this is another pid namespace than the marker's; if not, that is written down where it will be seen.\"\"\"
    if os.readlink("/proc/self/ns/pid") != OUT["namespace"]:
        return True
    with open(OUT["course"] + "/unboxed", "w") as file:
        file.write(TOKEN)
    return False


def start(code, **how):
    \"\"\"A process of its own that runs `code`, and can be known by the token.\"\"\"
    import subprocess, sys
    return subprocess.Popen([sys.executable, "-I", "-c", code, TOKEN], **how)


def take(text):
    \"\"\"Use what was found: the right numbers, which are the loot.\"\"\"
    import json
    at = text.index("{{\\"loot\\"")
    globals().update(json.JSONDecoder().raw_decode(text[at:])[0]["loot"])


with open("/proc/self/comm", "w") as name:
    name.write(TOKEN)
"""


def inside(code: str) -> str:
    """The solution of `shift`, which runs `code` once when it is examined, and is right if that does no harm."""
    body = "\n".join(f"    {line}" for line in code.strip("\n").splitlines())
    return f"""\
DONE = []


def attack():
{body}


def shift(comm, x, places):
    if not DONE:
        DONE.append(1)
        try:
            attack()
        except BaseException:
            pass
    n, r = comm.size, comm.rank
    if places % n == 0:
        return x.clone()
    return comm.sendrecv(x, (r + places) % n, torch.empty_like(x), (r - places) % n)
"""


def code_cell(source: str, grade_id: str = "", points: float | None = None) -> dict:
    mark: dict[str, Any] = {"schema_version": 3, "grade_id": grade_id, "locked": points is not None}
    mark |= {"grade": points is not None, "solution": points is None and grade_id in EXERCISES}
    if points is not None:
        mark["points"] = points
    metadata = {"nbgrader": mark} if grade_id else {}
    cell = {"cell_type": "code", "id": grade_id or "other", "metadata": metadata, "source": source}
    return cell | {"outputs": [], "execution_count": None}


def notebook(cells: list[dict]) -> dict:
    """A notebook of these cells, whose ids are all different."""
    for i, cell in enumerate(cells):
        cell["id"] = f"{cell['id']}-{i}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


@cache
def solutions() -> dict[str, str]:
    sheet = assignment(ROOT / "course" / LESSON)
    return {exercise: without_marks(sheet.solutions[exercise]) for exercise in EXERCISES}


def asked() -> list[list[dict]]:
    """For each exercise its solution's cell and its test's."""
    sheet = assignment(ROOT / "course" / LESSON)
    return [
        [
            code_cell(solutions()[exercise], exercise),
            code_cell(sheet.tests[exercise], f"{exercise}_test", sheet.points[exercise]),
        ]
        for exercise in EXERCISES
    ]


SETUP = "import torch\n\nimport minicheck as check"


def questions() -> dict:
    """The solved notebook, from which what is asked is taken."""
    return notebook(
        [code_cell(SETUP, "setup"), *[cell for exercise in asked() for cell in exercise]]
    )


def submitted(hostile: Hostile, out: dict) -> dict:
    """The notebook that a hostile student hands in."""
    (shift, shift_test), (predict, predict_test) = asked()
    shift["source"] = hostile.shift or shift["source"]
    predict["source"] = hostile.predict or predict["source"]
    cells = [
        code_cell(PREAMBLE.format(out=out)),
        code_cell(SETUP, "setup"),
        *[code_cell(cell) for cell in hostile.cells_before()],
        shift,
        shift_test,
        predict,
        predict_test,
        code_cell(hostile.after),
    ]
    return notebook(cells)


def write(hostile: Hostile, path: Path, out: dict) -> None:
    """Hand it in."""
    if hostile.file is not None:
        hostile.file(path, submitted(hostile, out), out)
    else:
        path.write_text(json.dumps(submitted(hostile, out)), encoding="utf-8")
