"""A class is graded: whatever one marking does, the others get theirs, once."""

import contextlib
import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import yaml

import minicheck
from minicheck import __main__, grade, notebook
from minicheck.exam import FAILED
from minicheck.grade import (
    Journal,
    Run,
    digest_of_grading,
    others_numbers,
    questions,
    test_cells,
)
from minicheck.notebook import ROOT, Mark
from minicheck.tables import Graded
from minicheck.uploads import Owner, submissions


class Marked(NamedTuple):
    marks: list
    notes: list
    odd: list
    whose: str = ""


def test_cell(grade_id, points):
    metadata = {"nbgrader": {"grade_id": grade_id, "grade": True, "points": points}}
    return {"cell_type": "code", "metadata": metadata, "source": [f"check.{grade_id}(x)"]}


test_cells.__test__ = test_cell.__test__ = False  # what pytest would take for tests
WHY = {"nbgrader": {"grade_id": "why", "grade": True, "solution": True, "points": 2.5}}
OPEN = {"cell_type": "markdown", "metadata": WHY, "source": ["*Your answer here.*"]}
ASKED = {"cells": [test_cell("add_test", 2), test_cell("half_test", 3), OPEN]}
FAILS = {
    "raises": RuntimeError("no \x1b[2J"),
    "ends": SystemExit(0),
    "recurses": RecursionError("deep"),
    "fills": MemoryError(),
}


def mark(path, asked, sandbox, half=lambda text: "half" in text):
    """A notebook here is the names of what is right in it; or of how its marking fails."""
    text = path.read_text()
    if text in FAILS:
        raise FAILS[text]
    if text == "forgets":
        return Marked([Mark("add_test", 2, None)], [], [])
    wrong = {"add_test": "add" not in text, "half_test": not half(text)}
    marks = [
        Mark(name, p, "wrong words" if wrong[name] else None)
        for name, p in test_cells(asked).items()
    ]
    return Marked(marks, ["A cell was split."], ["killed"] if text == "killed" else [])


@pytest.fixture
def folder(tmp_path):
    """submitted/, of students whose notebooks are their texts."""

    def hand_in(**texts):
        for student, text in texts.items():
            path = tmp_path / "submitted" / f"{student}.ipynb"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return tmp_path

    return hand_in


def run(folder, mark=mark, asked=ASKED, **options):
    """The points of each student (None: not graded), the changes as text, and whose marking ran."""
    said = []
    one = Run(
        asked,
        folder / "graded",
        mark,
        say=lambda done, graded: said.append(graded.owner.student),
        **options,
    )
    graded, changes = one.grade(submissions(folder / "submitted", "06_buckets"))
    points = {g.owner.student: None if g.failed else g.points for g in graded}
    return points, list(map(str, changes)), sorted(said)


def test_each_gets_marks(folder):
    root = folder(ann="add half", bob="half", cyd="killed")
    points, changes, said = run(root, jobs=2)
    assert points == {"ann": 5, "bob": 3, "cyd": 0}
    assert changes == [] and said == ["ann", "bob", "cyd"]


@pytest.mark.parametrize("how", [*FAILS, "forgets"])
def test_a_marking_that_fails_is_no_zero(folder, how):
    root = folder(ann="add", bad=how, cyd="half")
    points, *_ = run(root)
    assert points == {"ann": 2, "bad": None, "cyd": 3}
    record = Journal(root / "graded/journal.jsonl").latest["bad"]
    assert "look at it by hand" in record["odd"][0]


def test_a_grader_that_failed_is_odd(folder):
    """The exercise has its words, and the others their points; the teacher hears of it."""

    def fails(path, asked, sandbox):
        marked = mark_all_right(asked)
        marked.marks[0] = marked.marks[0]._replace(wrong=f"add: {FAILED}.")
        return marked

    root = folder(ann="add")
    assert run(root, mark=fails)[0] == {"ann": 3}
    record = Journal(root / "graded/journal.jsonl").latest["ann"]
    assert record["odd"] == ["look at add: the grader itself failed"]


def test_whose_numbers_a_notebook_has(folder):
    """Where students have given their names; no oddity where nobody has."""

    def named(path, asked, sandbox):
        return mark_all_right(asked)._replace(whose=path.read_text())

    root = folder(ann="Ann", bob=" ann ", cyd="", dan="Dan")
    run(root, mark=named)
    graded, _ = Run(ASKED, root / "graded", named).grade(submissions(root / "submitted", "x"))
    assert {one.owner.student: one.odd for one in graded} == {
        "ann": ["its STUDENT is the same name as in the notebook of bob"],
        "bob": ["its STUDENT is the same name as in the notebook of ann"],
        "cyd": ["its predictions are of the text's numbers: STUDENT is not set"],
        "dan": [],
    }
    assert others_numbers(["ann", "bob"], ["", ""]) == [[], []]


def test_a_marking_that_failed_is_tried_again(folder):
    root = folder(ann="add", bad="raises")
    run(root)
    points, changes, said = run(root, mark=lambda path, asked, sandbox: mark_all_right(asked))
    assert points == {"ann": 2, "bad": 5} and said == ["bad"]
    assert changes == [
        "bad: none → 5 (add 0 → 2, half 0 → 3), because it could not be graded before"
    ]


def mark_all_right(asked):
    return Marked([Mark(name, points, None) for name, points in test_cells(asked).items()], [], [])


def test_what_cannot_be_read_is_a_zero_with_words(folder):
    root = folder(ann="add")
    (root / "submitted/eve.ipynb").symlink_to(root / "submitted/ann.ipynb")
    assert run(root)[0] == {"ann": 2, "eve": 0}
    record = Journal(root / "graded/journal.jsonl").latest["eve"]
    assert record["marks"][0][2] == record["odd"][0]
    assert "could not be read: eve.ipynb is a link" in record["odd"][0]


def test_only_what_changed_is_graded_again(folder):
    root = folder(ann="add", bob="half")
    run(root)
    assert run(root)[1:] == ([], [])
    folder(bob="add half")
    assert run(root)[1:] == (
        ["bob: 3 → 5 (add 0 → 2), because it was handed in anew"],
        ["bob"],
    )
    assert run(root, again=["ann"])[1:] == ([], ["ann"])


def test_corrected_tests_grade_all_anew_and_say_whose_marks_change(folder, monkeypatch):
    root = folder(ann="add", bob="half", cyd="add half")
    run(root)
    kinder = partial(mark, half=lambda text: True)
    monkeypatch.setattr(grade, "digest_of_grading", lambda asked: "another")
    points, changes, said = run(root, mark=kinder)
    assert points == {"ann": 5, "bob": 3, "cyd": 5} and said == ["ann", "bob", "cyd"]
    assert changes == ["ann: 2 → 5 (half 0 → 3), because what grades it has changed"]
    assert run(root, mark=kinder)[1:] == ([], [])


def test_the_digest_is_of_questions_and_graders(tmp_path, monkeypatch):
    digests = {digest_of_grading(ASKED), digest_of_grading({"cells": [test_cell("add_test", 3)]})}
    monkeypatch.setattr(grade, "PACKAGE", tmp_path)
    digests.add(digest_of_grading(ASKED))
    for name, text in [("exam.py", "1"), ("exam.py", "2"), ("lessons.py", "2")]:
        (tmp_path / name).write_text(text)
        digests.add(digest_of_grading(ASKED))
    assert len(digests) == 6
    assert digest_of_grading(ASKED) in digests


def test_a_run_that_was_ended_goes_on(folder, monkeypatch):
    """The last line is half written; and what an ended run changed is still told by the next that ends well."""
    root = folder(ann="half", bob="half", cyd="half")
    run(root)
    monkeypatch.setattr(grade, "digest_of_grading", lambda asked: "another")
    calls = []

    def interrupted(path, asked, sandbox):
        calls.append(path)
        if len(calls) == 2:
            raise_in_main()
        return mark_all_right(asked)

    def raise_in_main():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)

    with pytest.raises(grade.Stopped) as stopped:
        run(root, mark=interrupted)
    assert not stopped.value.stuck
    with (root / "graded/journal.jsonl").open("a") as journal:
        journal.write('{"student": "cyd", "subm')
    _, changes, said = run(root, mark=lambda path, asked, sandbox: mark_all_right(asked))
    assert said == ["bob", "cyd"]
    assert [change.partition(",")[0] for change in changes] == [
        "ann: 3 → 5 (add 0 → 2)",
        "bob: 3 → 5 (add 0 → 2)",
        "cyd: 3 → 5 (add 0 → 2)",
    ]


def test_one_run_at_a_time(folder):
    root = folder(ann="add")
    held = Journal(root / "graded/journal.jsonl")
    with pytest.raises(ValueError, match="another run"):
        run(root)
    held.close()
    assert run(root)[0] == {"ann": 2}


def test_so_many_at_once(folder):
    root = folder(**{f"s{i}": "add" for i in range(6)})
    together = threading.Barrier(3, timeout=20)

    def meet(path, asked, sandbox):
        together.wait()
        return mark_all_right(asked)

    assert set(run(root, mark=meet, jobs=3)[0].values()) == {5}


def test_questions_are_known_without_solutions(tmp_path, monkeypatch):
    names = sorted(path.stem for path in (ROOT / "minicheck/questions").glob("*.json"))
    assert len(names) > 10
    for name in names:
        solved = questions(name, ROOT / "solutions" / name / f"{name}.ipynb")
        assert test_cells(questions(name)) == test_cells(solved) != {}
    with pytest.raises(
        FileNotFoundError, match=r"no assignment is named 99_magic; there are 01_walls, "
    ):
        questions("99_magic")
    with pytest.raises(FileNotFoundError, match=r"No such file .*none\.ipynb"):
        questions("06_buckets", tmp_path / "none.ipynb")


# ------------------------------------------------------------
# The command.


@pytest.fixture
def command(monkeypatch, capsys):
    """`python -m minicheck grade`, with a stub for the sandbox and the marking: its exit code, what it prints."""
    engines = []

    def choose(engine, seconds, trust):
        if engine == "docker":
            raise ValueError("docker is not installed")
        engines.append((engine, seconds, trust))

    monkeypatch.setattr(minicheck, "sandbox", SimpleNamespace(choose=choose), raising=False)
    monkeypatch.setattr(notebook, "mark", mark, raising=False)
    monkeypatch.setattr(__main__, "questions", lambda name, solved: ASKED)
    monkeypatch.setattr(__main__, "adopt_orphans", lambda: None)

    def run(root, *options):
        out = ("--out", str(root / "graded"))
        source = str(root / "submitted")
        code = __main__.main(["grade", source, "--assignment", "06_buckets", *out, *options])
        said = capsys.readouterr()
        return code, said.out, said.err, engines

    return run


def test_the_command(folder, command):
    root = folder(ann="add half", bob="raises", cyd="killed")
    code, said, _, engines = command(root, "--engine", "bwrap", "--seconds", "60", "--jobs", "2")
    assert code == 1 and engines == [("bwrap", 60.0, False)]
    assert "3 submissions of 06_buckets in 0 s." in said
    assert "Points: 2.5 of 5 on average, from 0 to 5." in said
    assert "Not graded, look at them by hand: bob." in said
    assert "    cyd: killed\n" in said and "\x1b" not in said
    assert sum(line.lstrip()[:2] in ("1/", "2/", "3/") for line in said.splitlines()) == 3
    with (root / "graded/grades.csv").open(newline="") as file:
        points = [(row["student"], row["points"]) for row in csv.DictReader(file)]
    assert points == [
        ("ann", "2"),
        ("ann", "3"),
        ("ann", ""),
        ("bob", ""),
        ("bob", ""),
        ("bob", ""),
        ("cyd", "0"),
        ("cyd", "0"),
        ("cyd", ""),
    ]
    assert "why is open: read the answers, and add up to 2.5 points yourself." in said
    folder(bob="add")
    code, said, _, engines = command(root, "--trust-submissions", "--canvas-column", "B (1)")
    assert code == 0 and engines[1:] == [(None, None, True)]
    assert "2 of them were graded before" in said
    assert "bob: none → 2 (add 0 → 2), because it could not be graded before" in said
    assert (
        (root / "graded/canvas.csv").read_text().startswith("Student,ID,SIS Login ID,Section,B (1)")
    )


def test_a_bar_on_a_terminal():
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    progress = __main__.Progress(2, terminal)
    for done, student in enumerate(("ann", "b\x1b[2Job"), 1):
        progress.say(done, Graded(Owner(student), [Mark("a_test", 2, None)], [], [], False, 1))
    first, second, end = terminal.getvalue().split("\n")
    assert first.startswith("\r\x1b[K1/2  ann ") and second.startswith("█" * 15 + "·" * 15)
    assert "\r\x1b[K2/2  bob " in second and end == ""


def test_the_command_refuses_with_a_sentence(folder, command, tmp_path):
    root = folder(ann="add")
    assert command(root, "--engine", "docker")[0::2][:2] == (
        2,
        f"{root / 'submitted'} cannot be graded: docker is not installed\n",
    )
    (root / "submitted/ann.ipynb").unlink()
    code, _, said, _ = command(root)
    assert code == 2 and "nobody has handed in 06_buckets" in said
    assert not (root / "graded").exists()


def test_the_page_for_teachers_names_the_options_that_there_are():
    """And its workflow for GitHub Classroom is YAML whose points are the assignment's."""
    page = (ROOT / "docs/grading.md").read_text(encoding="utf-8")
    options = set(__main__._parser()._option_string_actions) - {"-h", "--help", "--assignment"}
    assert set(re.findall(r"^\| `(--[\w-]+)", page, re.MULTILINE)) == options
    workflow = yaml.safe_load(re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1])
    [step] = [s for s in workflow["jobs"]["run-autograding-tests"]["steps"] if s.get("id")]
    points = sum(test_cells(questions("06_buckets")).values())
    assert step["with"]["max-score"] == points
    assert step["with"]["command"].endswith("minicheck exercises/06_buckets/06_buckets.ipynb")


DRIVER = """
import subprocess, sys, types
import minicheck
from minicheck import __main__, notebook
sys.path.insert(0, "tests/minicheck")
import test_grade

def mark(path, asked, sandbox):
    if path.read_text() == "hangs":
        subprocess.run(["bash", "-c", "setsid sleep 1000 & (exec -a orphan sleep 1000 &); sleep 1000"])
    return test_grade.mark_all_right(asked)

minicheck.sandbox = types.SimpleNamespace(choose=lambda *a, **k: None)
notebook.mark = mark
__main__.questions = lambda name, solved: test_grade.ASKED
sys.exit(__main__.main(sys.argv[1:]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells whose child a process is")
def test_ctrl_c_ends_in_one_sentence_and_leaves_no_process(folder):
    """Neither what a marking waits for, nor what has left its session or its parent; what was graded stays.

    A second signal does not disturb the ending.
    """
    root = folder(ann="add", bob="hangs", cyd="add")
    words = ["grade", str(root / "submitted"), "--assignment", "06_buckets", "--jobs", "1"]
    marker = f"GRADED_IN={root}"
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, *words, "--out", str(root / "graded")],
        cwd=ROOT,
        env=os.environ | {"GRADED_IN": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 100
    while len(sleepers(marker)) < 3 and time.monotonic() < until:
        time.sleep(0.1)
    assert len(sleepers(marker)) == 3
    process.send_signal(signal.SIGINT)
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.01)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.strip() == "Stopped: 1 of 3 are graded, and the same command goes on from there."
    assert bearers(marker) == []
    assert set(Journal(root / "graded/journal.jsonl").latest) == {"ann"}


def sleepers(marker):
    """Those of the bearers that are `sleep` by now, and no shell that is about to be."""
    found = []
    for pid in bearers(marker):
        with contextlib.suppress(OSError):
            found += [pid] if Path(f"/proc/{pid}/comm").read_text() == "sleep\n" else []
    return found


def bearers(marker):
    """The processes that have this in their environment."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if marker.encode() in file.read().split(b"\0"):
                    found.append(int(pid))
        except OSError:
            continue
    return found


def test_a_journal_is_lines_of_json(folder):
    root = folder(ann="add")
    run(root)
    lines = (root / "graded/journal.jsonl").read_text().splitlines()
    assert [sorted(json.loads(line)) for line in lines] == [
        ["failed", "grading", "marks", "notes", "odd", "seconds", "student", "submission", "whose"],
        ["finished"],
    ]
