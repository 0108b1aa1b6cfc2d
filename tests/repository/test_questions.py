"""course/questions.py: what is asked is what was handed out, and no solution is in it."""

import json

import pytest

from course.questions import main, stale, text_of
from tests.repository.files import ROOT

CELL = {
    "cell_type": "code",
    "id": "a",
    "metadata": {"nbgrader": {"grade_id": "add_test", "grade": True, "points": 2}},
    "source": ["check.add(add)"],
    "outputs": [],
    "execution_count": 7,
}
OPEN = {
    "cell_type": "markdown",
    "id": "d",
    "metadata": {"nbgrader": {"grade_id": "why", "grade": True, "solution": True, "points": 2}},
    "source": ["*Your answer here.*"],
}
TEXT = {"cell_type": "markdown", "id": "b", "metadata": {"nbgrader": {}}, "source": ["# Add"]}
PLAIN = {"cell_type": "code", "id": "c", "metadata": {}, "source": ["draw()"], "outputs": []}


@pytest.fixture
def root(tmp_path):
    exercise = tmp_path / "exercises/07_sample/07_sample.ipynb"
    exercise.parent.mkdir(parents=True)
    exercise.write_text(json.dumps({"cells": [TEXT, CELL, PLAIN, OPEN]}))
    return tmp_path


def test_those_of_the_course_are_fresh():
    assert stale(ROOT) == []


def test_they_hold_every_question_and_no_solution():
    found = sorted((ROOT / "minicheck/questions").glob("*.json"))
    assert [path.stem for path in found] == sorted(p.name for p in (ROOT / "solutions").iterdir())
    for path in found:
        asked = json.loads(path.read_text())["cells"]
        solved = json.loads((ROOT / "solutions" / path.stem / f"{path.stem}.ipynb").read_text())
        grades = [
            [
                c["source"]
                for c in cells
                if c["cell_type"] == "code" and c["metadata"].get("nbgrader", {}).get("grade")
            ]
            for cells in (asked, solved["cells"])
        ]
        assert grades[0] == grades[1]
        stubs = [c for c in asked if c["metadata"]["nbgrader"]["solution"]]
        kinds = {"code": "raise NotImplementedError", "markdown": "*Your answer here.*"}
        assert stubs and all(kinds[cell["cell_type"]] in "".join(cell["source"]) for cell in stubs)


def test_only_cells_that_ask_are_kept(root):
    assert main(["--root", str(root)]) == 0
    found = json.loads((root / "minicheck/questions/07_sample.json").read_text())["cells"]
    keys = ("cell_type", "id", "metadata", "source")
    assert found == [{key: cell[key] for key in keys} for cell in (CELL, OPEN)]


@pytest.mark.parametrize("spoil", ["missing", "changed", "too many"])
def test_what_is_stale_is_named_and_mended(root, capsys, spoil):
    main(["--root", str(root)])
    path = root / "minicheck/questions/07_sample.json"
    other = path.with_stem("08_gone")
    named = other if spoil == "too many" else path
    if spoil == "missing":
        path.unlink()
    elif spoil == "changed":
        path.write_text(path.read_text().replace('"points": 2', '"points": 3'))
    else:
        other.write_text(path.read_text())
    assert main(["--root", str(root), "--check"]) == 1
    assert f"minicheck/questions/{named.name} is stale" in capsys.readouterr().out
    assert main(["--root", str(root)]) == 0
    assert main(["--root", str(root), "--check"]) == 0


def test_a_test_that_asks_nothing_of_check_is_refused(root):
    exercise = root / "exercises/07_sample/07_sample.ipynb"
    exercise.write_text(json.dumps({"cells": [CELL | {"source": ["assert add(1, 2) == 3"]}]}))
    with pytest.raises(ValueError, match="add_test asks nothing of `check`"):
        text_of(exercise)


def test_an_open_answer_is_a_text_with_points(root):
    exercise = root / "exercises/07_sample/07_sample.ipynb"
    exercise.write_text(json.dumps({"cells": [OPEN | {"cell_type": "code"}]}))
    with pytest.raises(ValueError, match="why asks nothing of `check`"):
        text_of(exercise)
    mark = OPEN["metadata"]["nbgrader"] | {"grade": False}
    exercise.write_text(json.dumps({"cells": [OPEN | {"metadata": {"nbgrader": mark}}]}))
    with pytest.raises(ValueError, match="why is to be answered, for no points"):
        text_of(exercise)
