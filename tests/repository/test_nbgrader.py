"""nbgrader, headless, on a built course as it is: from the release of an assignment to the marks."""

import csv
import json
import os
import subprocess
import sys

from tests.repository.sample import course
from tests.repository.test_build import run

NAME = "07_sample"


# What `nbgrader` does for each command, one after another: to import it takes longer than most commands.
COMMANDS = """
import json, sys
from nbgrader.apps.nbgraderapp import NbGraderApp

for command in json.loads(sys.argv[1]):
    NbGraderApp.clear_instance()
    print("----", *command, flush=True)
    NbGraderApp.launch_instance(argv=command)
"""


def nbgrader(root, *commands):
    """What each command printed; all must succeed, or end without an exit status."""
    # A profile of one's own would be read too.
    env = os.environ | {"JUPYTER_CONFIG_DIR": str(root / ".jupyter"), "IPYTHONDIR": str(root / ".ipython")}
    done = subprocess.run([sys.executable, "-c", COMMANDS, json.dumps(commands)], cwd=root, env=env, text=True,
                          capture_output=True, timeout=180)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split("---- ")[1:]


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


def test_from_the_release_to_the_marks(tmp_path):
    """One test, and one process for all commands: to build the course and to start nbgrader take the longest."""
    root = course(tmp_path)
    assert run(root).returncode == 0
    exercise, solution = (f"{folder}/{NAME}/{NAME}.ipynb" for folder in ("exercises", "solutions"))
    ours = (root / exercise).read_bytes()
    submit(root, "right", "return a + b", "return 2 * a")
    submit(root, "hidden", "return 3", "return a + a")
    # Passes only what it can see, and a test that it has changed.
    cheat = submit(root, "cheat", "return 3", "return a")
    cheat.write_text(cheat.read_text().replace("assert double(2) == 4", "pass"))
    solved, empty, nothing, *_ = nbgrader(
        root, ["validate", solution], ["validate", exercise], ["validate", "--invert", exercise],
        ["generate_assignment", NAME, "--force"], ["autograde", NAME], ["generate_feedback", NAME], ["export"],
    )  # fmt: skip
    assert "Success! Your notebook passes all the tests." in solved
    assert "Success!" not in empty and "NotImplementedError" in empty
    assert "Success! The notebook does not pass any tests." in nothing
    assert (root / exercise).read_bytes() == ours
    with open(root / "grades.csv") as f:
        marks = {row["student_id"]: (float(row["score"]), float(row["max_score"])) for row in csv.DictReader(f)}
    assert marks == {"right": (5, 5), "hidden": (3, 5), "cheat": (0, 5)}
    for student in marks:
        assert "07_sample" in (root / "feedback" / student / NAME / f"{NAME}.html").read_text()
