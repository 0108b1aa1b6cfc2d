"""nbgrader, headless, on a built course as it is: from the release of an assignment to the marks."""

import csv
import io
import json
import os
import shutil

import pytest
from nbgrader.api import Gradebook
from nbgrader.apps.nbgraderapp import NbGraderApp
from nbgrader.validator import Validator

from tests.bank.bank import assignment, planted
from tests.repository.files import ROOT
from tests.repository.sample import ASSIGNMENT, course
from tests.repository.test_build import run
from tests.sandboxed import BWRAP

NAME = "07_sample"
HALF = """
# %% nbgrader={"grade_id": "half", "solution": true}
def half(a):
    ### BEGIN SOLUTION
    return a / 2
    ### END SOLUTION

# %% nbgrader={"grade_id": "half_test", "points": 4}
assert half(2) == 1

# %% [markdown] nbgrader={"grade_id": "why_spec"}
# Why is it half? One point for the reason, one for the plot.

# %% nbgrader={"grade_id": "why_plot", "solution": true}
### BEGIN SOLUTION
import matplotlib.pyplot as plt
plt.plot([0, 1], [0, 0.5])
plt.show()
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "why", "solution": true, "points": 2}
# It is the teacher's secret.
"""
PNG = "iVBORw0KGgoAAAA="
PLOT = [{"output_type": "display_data", "data": {"image/png": PNG}, "metadata": {}}]


def nbgrader(*command):
    """The command, in this process: to import nbgrader, and torch for regrading, takes longer than to run it."""
    NbGraderApp.clear_instance()
    NbGraderApp.launch_instance(argv=[*command])


WHY = "Because the two halves are equal."


def submit(root, student, *replacements):
    """The released exercise, each stub replaced in turn, as `student` hands it in."""
    nb = json.loads((root / "exercises" / NAME / f"{NAME}.ipynb").read_text())
    marks = [c["metadata"].get("nbgrader", {}) for c in nb["cells"]]
    answers = [c for c, mark in zip(nb["cells"], marks, strict=True) if mark.get("solution")]
    *stubs, plot, why = answers
    plot.update(source=["print('a plot')"], outputs=PLOT)
    why["source"] = [WHY]
    for cell, body in zip(stubs, replacements, strict=True):
        head = [
            line
            for line in cell["source"]
            if not line.strip().startswith(("# your code", "raise Not"))
        ]
        cell["source"] = [*head, f"    {body}\n"]
    path = root / "submitted" / student / NAME / f"{NAME}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(nb))
    return path


def headless(root, monkeypatch):
    """nbgrader works in `root`, with no configuration of one's own."""
    monkeypatch.chdir(root)
    for name in ("JUPYTER_CONFIG_DIR", "IPYTHONDIR"):  # a profile of one's own would be read too
        monkeypatch.setenv(name, str(root / name))
    monkeypatch.setenv("PATH", os.environ["PATH"])  # the configuration changes it


def marked(root, name):
    """{student: (points, of how many)} of what is handed in for an assignment that was released."""
    nbgrader("generate_assignment", name, "--force")
    nbgrader("autograde", name)
    nbgrader("generate_feedback", name)
    nbgrader("export")
    with open(root / "grades.csv") as f:
        rows = [*csv.DictReader(f)]
    return {row["student_id"]: (float(row["score"]), float(row["max_score"])) for row in rows}


@BWRAP
@pytest.mark.filterwarnings("ignore:Object of type <Submitted")  # nbgrader's own use of SQLAlchemy
def test_from_the_release_to_the_marks(tmp_path, monkeypatch):
    """One test: to build the course and to start kernels take the longest."""
    root = course(tmp_path, assignment=ASSIGNMENT + HALF)
    (root / "course" / NAME / "lesson.py").unlink()  # which nbgrader never sees
    assert run(root).returncode == 0
    headless(root, monkeypatch)
    exercise, solution = (f"{folder}/{NAME}/{NAME}.ipynb" for folder in ("exercises", "solutions"))
    ours = (root / exercise).read_bytes()
    # What passes only what it can see, what passes a test that it has changed, and what is right.
    cheat = submit(root, "cheat", "return 3", "return a", "return 0.5 * a")
    cheat.write_text(cheat.read_text().replace("assert double(2) == 4", "pass"))
    said = []
    for command in (
        ["validate", solution],
        ["validate", exercise],
        ["validate", "--invert", exercise],
    ):
        # else what was stdout at its import
        monkeypatch.setattr(Validator, "stream", io.StringIO())
        nbgrader(*command)
        said.append(Validator.stream.getvalue())
    assert "Success! Your notebook passes all the tests." in said[0]
    assert "Success!" not in said[1] and "NotImplementedError" in said[1]
    assert "Success! The notebook does not pass any tests." in said[2]
    notes = hand_in_badly(root)
    assert marked(root, NAME) == {"cheat": (4, 11)} | {
        student: (0 if student in NOTHING else 9, 11) for student in notes
    }
    assert grade_by_hand({"cheat", *notes}, 1.5) == {"cheat", *notes} - NOTHING
    assert (root / exercise).read_bytes() == ours
    assert (root / "grades.csv").read_text().count("2024-02-03 04:05:06") == 1
    kept = [path for path in (root / "autograded").rglob("*") if path.is_file()]
    assert {path.name for path in kept} == {f"{NAME}.ipynb", "own.txt", "timestamp.txt"}
    for student, said in {"cheat": ["`double_test` was changed"], **notes}.items():
        feedback = (root / "feedback" / student / NAME / f"{NAME}.html").read_text()
        text = feedback.replace("<code>", "`").replace("</code>", "`")
        assert ("Before it was graded" in text) == bool(said), student
        assert all(words in text for words in said), student
        assert (WHY in text) == (student not in NOTHING), student
        # a plot is known by the mark of its cell
        assert (f"data:image/png;base64,{PNG}" in text) == (student not in {*NOTHING, "stripped"})
    assert "secret" not in (root / exercise).read_text()
    nbgrader("export")
    with open(root / "grades.csv") as f:
        points = {row["student_id"]: float(row["score"]) for row in csv.DictReader(f)}
    assert (points["beside"], points["cheat"], points["broken"]) == (10.5, 5.5, 0)


def grade_by_hand(students, points):
    """Give those points for each open answer that nbgrader hands to the teacher; whose these are."""
    graded = set()
    with Gradebook("sqlite:///gradebook.db") as gradebook:
        for student in students:
            grade = gradebook.find_grade("why", NAME, NAME, student)
            assert grade.max_score == 2
            if grade.needs_manual_grade:
                grade.manual_score = points
                graded.add(student)
        gradebook.db.commit()
    return graded


# Every mark before it to zero, another's notebook overwritten, the graders and the marker gone: none of it is there.
HOSTILE = """\
import os, pathlib, shutil, signal, sqlite3
root = pathlib.Path({root!r})
tried = [
    lambda: sqlite3.connect(root / "gradebook.db").execute("UPDATE grade SET auto_score = 0").connection.commit(),
    lambda: (root / "submitted/beside/07_sample/07_sample.ipynb").write_text("[]"),
    lambda: (root / "nbgrader_config.py").unlink(),
    lambda: shutil.rmtree(root / "autograded"),
    lambda: os.kill(os.getppid() or 1, signal.SIGKILL),
]
for attack in tried:
    try:
        attack()
    except Exception:
        pass
"""
# Who hands in what is no notebook; all others have nine points.
NOTHING = {"broken", "linked", "away"}


def hand_in_badly(root):
    """The same right answers, as students hand them in; {student: what the feedback says}. Each takes a sandbox, two
    seconds: two mistakes that do not hide each other are one student's."""
    right = ("return a + b", "return a + a", "return a / 2")
    paths = {
        student: submit(root, student, *right)
        for student in (
            "split and deleted",
            "twice and reordered",
            "stripped",
            "broken",
            "linked",
            "beside",
            "away",
            "hostile",
        )
    }
    cells = json.loads(paths["beside"].read_text())["cells"]
    ids = [c["metadata"].get("nbgrader", {}).get("grade_id") for c in cells]
    add, test = ids.index("add"), ids.index("add_test")
    helper = {**cells[add], "source": "def plus(a, b):\n    return a + b"}
    user = {**cells[add], "source": "def add(a, b):\n    return plus(a, b)"}
    changed = {
        "split and deleted": [
            *cells[:add],
            helper,
            user,
            *cells[add + 1 : test],
            *cells[test + 1 :],
        ],
        "twice and reordered": [*cells[:add], cells[test], *cells[test:], cells[add]],
        "stripped": [{**c, "metadata": {}} for c in cells],
    }
    for student, those in changed.items():
        nb = json.loads(paths[student].read_text())
        paths[student].write_text(json.dumps(nb | {"cells": those}))
    paths["broken"].write_text(paths["broken"].read_text()[:-9])
    cells[add]["source"] = HOSTILE.format(root=str(root)) + "".join(cells[add]["source"])
    paths["hostile"].write_text(
        json.dumps(json.loads(paths["beside"].read_text()) | {"cells": cells})
    )
    paths["linked"].unlink()
    paths["linked"].symlink_to(root / "solutions" / NAME / f"{NAME}.ipynb")
    put_links(root, paths["beside"].parent, paths["away"].parent)
    (paths["twice and reordered"].parent / "timestamp.txt").write_text("early")
    (paths["split and deleted"].parent / "timestamp.txt").write_text("2024-02-03 04:05:06 UTC")
    return {
        "split and deleted": ["2 cells had the mark `add`", "`add_test` was missing"],
        "twice and reordered": ["`add_test` was there 2 times", "another order"],
        "stripped": ["No cell had"],
        "broken": ["There is nothing to grade"],
        "linked": ["is a link, and links are not followed"],
        "beside": [],
        "away": ["is a link, and links are not followed"],
        "hostile": [],
    }


def put_links(root, beside, away):
    """Links, and a pipe, that nbgrader would read through: beside a notebook, and in the place of its folder."""
    secret = root / "secret.txt"
    secret.write_text("of the teacher's")
    (beside / "data [1]").mkdir()
    (beside / "data [1]" / "own.txt").write_text("of the student's")
    (beside / "data [1]" / "link.txt").symlink_to(secret)
    (beside / "link [1].txt").symlink_to(secret)
    (beside / "lost.txt").symlink_to(root / "nowhere")
    os.mkfifo(beside / "timestamp.txt")
    away.rename(root / "elsewhere")
    (root / "elsewhere" / "other.txt").write_text("of the teacher's")
    away.symlink_to(root / "elsewhere")


def hand_in(root, name, student, answers):
    """The released notebook of the course's assignment `name`, with {exercise: cell} as answers."""
    nb = json.loads((root / "exercises" / name / f"{name}.ipynb").read_text())
    for cell in nb["cells"]:
        exercise = cell["metadata"].get("nbgrader", {}).get("grade_id")
        cell["source"] = answers.get(exercise, cell["source"])
    path = root / "submitted" / student / name / f"{name}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(nb))


@pytest.mark.full
@BWRAP
@pytest.mark.filterwarnings("ignore:Object of type <Submitted")
def test_an_assignment_of_the_course(tmp_path, monkeypatch, figure):
    """A right, a half-right and a cheating submission get what they are worth, and nothing yet for the open exercise."""
    name = "02_messages"
    lesson = ROOT / "course" / name
    sheet = assignment(lesson)
    half = dict([*sheet.solutions.items()][: len(sheet.solutions) // 2])
    cheats = {}
    for bug in planted(lesson):
        if bug.cheat:
            cheats.setdefault(bug.exercise, bug.code(sheet.solutions[bug.exercise]))
    shutil.copy(ROOT / "nbgrader_config.py", tmp_path)
    for part in ("solutions", "exercises"):
        shutil.copytree(ROOT / part / name, tmp_path / part / name)
    hand_in(tmp_path, name, "right", sheet.solutions)
    hand_in(tmp_path, name, "half", half)
    hand_in(tmp_path, name, "cheat", sheet.solutions | cheats)
    headless(tmp_path, monkeypatch)
    marks = marked(tmp_path, name)
    earned, full = sum(sheet.points.values()), sum((sheet.points | sheet.by_hand).values())
    for_half = sum(sheet.points.get(exercise, 0) for exercise in half)
    for_cheat = earned - sum(sheet.points[exercise] for exercise in cheats)
    figure(
        f"points of {earned}: right {marks['right'][0]:g}, half-right {marks['half'][0]:g} (its share: {for_half}), "
        f"cheating on {len(cheats)} exercises {marks['cheat'][0]:g} (the others: {for_cheat})"
    )
    assert cheats and marks == {
        "right": (earned, full),
        "half": (for_half, full),
        "cheat": (for_cheat, full),
    }
