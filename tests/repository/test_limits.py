"""A picture after an exercise runs the learner's function in the notebook itself: never without a limit of time."""

import ast

import jupytext
import pytest

from tests.repository.files import ROOT

ASSIGNMENTS = sorted(
    path
    for path in ROOT.glob("course/*/assignment.py")
    if "check.limit(" in path.read_text(encoding="utf-8")
)


def unlimited(cells):
    """Names of learners' functions that run outside of a limit. cells: (source, its nbgrader mark), in order."""
    learners = set()  # functions of learners, and those that call them
    limiting = set()  # functions that are given, and have a limit inside
    found = []
    for source, mark in cells:
        tree = ast.parse(source)
        if "points" in mark or mark.get("grade_id", "").endswith("_plot"):
            continue  # it asks a check, or is the learner's own picture
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                if "check.limit(" in ast.unparse(node):
                    limiting.add(node.name)
                if mark.get("solution") or names(node, limiting) & learners:
                    learners.add(node.name)
                else:
                    learners.discard(node.name)  # code that is given, with a bug to be found
            else:
                found += sorted(names(node, limiting) & learners)
    return found


def names(node, limiting):
    """The names in a piece of code, but for what stands within a limit, or is handed to a function that has one."""
    if isinstance(node, ast.With) and "check.limit(" in ast.unparse(node.items[0]):
        return set()
    if isinstance(node, ast.Call) and ast.unparse(node.func) in limiting:
        return set()
    found = {node.id} if isinstance(node, ast.Name) else set()
    return found.union(*(names(child, limiting) for child in ast.iter_child_nodes(node)))


def marked(path):
    cells = jupytext.read(path, fmt="py:percent").cells
    return [
        (cell.source, cell.metadata.get("nbgrader", {}))
        for cell in cells
        if cell.cell_type == "code"
    ]


@pytest.mark.parametrize("path", ASSIGNMENTS, ids=lambda path: path.parent.name)
def test_a_target_cell_runs_a_learners_function_within_a_limit(path):
    assert unlimited(marked(path)) == []


def test_these_lessons_have_limits():
    lessons = {path.parent.name[:2] for path in ASSIGNMENTS}
    assert {f"{number:02}" for number in range(1, 29)} <= lessons


def test_what_has_no_limit_is_found():
    cells = [
        ("def add(a, b):\n    return a + b", {"grade_id": "add", "solution": True}),
        ("check.add(add)", {"grade_id": "add_test", "points": 2}),
        ("def twice(x):\n    return add(x, x)", {}),
        ("with check.limit(10):\n    y = twice(1)\nprint(y)", {}),
    ]
    assert unlimited(cells) == []
    inside = "for i in range(3):\n    with check.limit(10):\n        y = twice(i)\n    print(y)"
    assert unlimited([*cells, (inside, {})]) == []
    bounded = "def shown(f):\n    with check.limit(10):\n        f(1)\n\n\nshown(add)"
    assert unlimited([*cells, (bounded, {})]) == []
    assert unlimited([*cells, ("print([twice(i) for i in range(3)])", {})]) == ["twice"]
    assert unlimited([*cells, ("World(3).run(add, 1)", {})]) == ["add"]
    assert unlimited([*cells, ("def add(a, b):\n    return 0\n\n\nadd(1, 2)", {})]) == []
