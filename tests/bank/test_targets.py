"""A picture after an exercise runs the learner's function in the notebook itself: an endless one is ended there.

Each function is replaced by one that has no end, in every cell that is given after it and calls it.
"""

import ast
import contextlib
import io

import jupytext
import pytest

import minicheck as check
from minicheck import Wrong
from tests.repository.files import ROOT

# those whose pictures have a limit
LESSONS = (
    "01_walls",
    "02_messages",
    "03_topology",
    "04_trees",
    "05_data_parallel",
    "11_remat",
)
SOON = 0.3  # seconds, in place of those that the cell allows
TOO_LONG = 20  # seconds after which this test ends a cell that has no limit


def endless(*given, **named):
    while True:
        pass


def cells_with_marks(lesson):
    """The source and nbgrader's metadata of each code cell."""
    cells = jupytext.read(ROOT / "course" / lesson / "assignment.py", fmt="py:percent").cells
    for cell in cells:
        if cell.cell_type == "code":
            yield cell.source, cell.metadata.get("nbgrader", {})


def names_in(source):
    return {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}


def quietly(source, names):
    with contextlib.redirect_stdout(io.StringIO()):
        exec(source, names)


@pytest.mark.parametrize("lesson", LESSONS)
def test_an_endless_answer_is_ended_in_the_picture(lesson, monkeypatch):
    names = {"__name__": "__main__"}
    answers = set()  # names of the functions that a learner has written so far
    latest = None
    tried = set()
    for source, mark in cells_with_marks(lesson):
        exercise = mark.get("grade_id", "").removesuffix("_test")
        if exercise.endswith("_plot") and mark.get("solution"):
            continue  # the learner's own
        if "points" in mark:
            latest = exercise
            continue
        if mark:
            quietly(source, names)
            latest = None
            if mark.get("solution") and callable(names.get(exercise)):
                answers.add(exercise)
            continue
        for answer in sorted(answers & (names_in(source) | {latest})):
            with monkeypatch.context() as patch:
                limit = check.limit
                patch.setattr(check, "limit", lambda seconds, limit=limit: limit(SOON))
                patch.setitem(names, answer, endless)
                with limit(TOO_LONG), pytest.raises(Wrong, match=f"no end after {SOON:g} s"):
                    quietly(source, names)
            tried.add(answer)
        quietly(source, names)
    assert tried == answers
