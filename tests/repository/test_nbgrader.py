"""nbgrader, headless, on a built course as it is: from the release of an assignment to the marks."""

import csv
import json
import os
import subprocess
import sys

import pytest

from tests.repository.sample import course
from tests.repository.test_build import run

NAME = "07_sample"


def nbgrader(root, *args):
    # A profile of one's own would be read too.
    env = os.environ | {"JUPYTER_CONFIG_DIR": str(root / ".jupyter"), "IPYTHONDIR": str(root / ".ipython")}
    return subprocess.run([sys.executable, "-m", "nbgrader", *args], cwd=root, env=env, capture_output=True, text=True,
                          timeout=180)


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    root = course(tmp_path_factory.mktemp("course"))
    assert run(root).returncode == 0
    return root


def submit(root, student, *replacements):
    """The released exercise, each stub replaced in turn, as `student` hands it in."""
    nb = json.loads((root / "exercises" / NAME / f"{NAME}.ipynb").read_text())
    stubs = [c for c in nb["cells"] if c["metadata"].get("nbgrader", {}).get("solution")]
    for cell, body in zip(stubs, replacements, strict=True):
        head = [line for line in cell["source"] if not line.strip().startswith(("# your code", "raise Not"))]
        cell["source"] = [*head, f"    {body}\n"]
    path = root / "submitted" / student / NAME / f"{NAME}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(nb))
    return path


def test_validate(released):
    solved = nbgrader(released, "validate", f"solutions/{NAME}/{NAME}.ipynb")
    assert "Success! Your notebook passes all the tests." in solved.stdout, solved.stdout + solved.stderr
    empty = nbgrader(released, "validate", f"exercises/{NAME}/{NAME}.ipynb")
    assert "Success!" not in empty.stdout
    assert "NotImplementedError" in empty.stdout
    nothing = nbgrader(released, "validate", "--invert", f"exercises/{NAME}/{NAME}.ipynb")
    assert "Success! The notebook does not pass any tests." in nothing.stdout


def test_round_trip(released):
    exercise = released / "exercises" / NAME / f"{NAME}.ipynb"
    ours = exercise.read_bytes()
    made = nbgrader(released, "generate_assignment", NAME, "--force")
    assert made.returncode == 0, made.stderr
    assert exercise.read_bytes() == ours
    submit(released, "right", "return a + b", "return 2 * a")
    submit(released, "half", "return a + b", "return a")
    submit(released, "hidden", "return 3", "return a + a")
    cheat = submit(released, "cheat", "return 3", "return a")
    cheat.write_text(cheat.read_text().replace("assert double(2) == 4", "pass"))
    for step in ("autograde", "generate_feedback"):
        done = nbgrader(released, step, NAME)
        assert done.returncode == 0, done.stderr
    assert nbgrader(released, "export").returncode == 0
    with open(released / "grades.csv") as f:
        marks = {row["student_id"]: (float(row["score"]), float(row["max_score"])) for row in csv.DictReader(f)}
    assert marks == {"right": (5, 5), "half": (2, 5), "hidden": (3, 5), "cheat": (0, 5)}
    for student in marks:
        assert "07_sample" in (released / "feedback" / student / NAME / f"{NAME}.html").read_text()
