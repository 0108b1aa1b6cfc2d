"""The work of somebody who studies alone: nothing of it is lost, and what is left to do is shown."""

import json
import shutil
import subprocess

import pytest

from minicheck import __main__, work
from minicheck.notebook import ROOT
from minicheck.submission import read

NAME = "02_messages"
SHIFT = '''def shift(comm, x, places):
    """Mine."""
    if places % comm.size == 0:
        return x.clone()
    source = (comm.rank - places) % comm.size
    return comm.sendrecv(x, (comm.rank + places) % comm.size, x.clone(), source)
'''


def git(folder, *command):
    own = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *own, *command], cwd=folder, check=True, capture_output=True)


def change(root, name, edit):
    """Edit the cells of what the course hands out."""
    path = root / "exercises" / name / f"{name}.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    edit(notebook["cells"])
    path.write_text(json.dumps(notebook), encoding="utf-8")


def cell(cells, grade_id):
    return next(c for c in cells if c["metadata"].get("nbgrader", {}).get("grade_id") == grade_id)


def reworded(cells):
    cell(cells, "shift_spec")["source"] = "## 1 · Shift, in other words"


def sources(path):
    return ["".join(c["source"]) for c in read(path)["cells"]]


@pytest.fixture
def course(tmp_path):
    """A course of two assignments under git, and a clone of it, which is a student's."""
    upstream = tmp_path / "course"
    for name in (NAME, "06_buckets"):
        shutil.copytree(ROOT / "exercises" / name, upstream / "exercises" / name)
    shutil.copy(ROOT / ".gitignore", upstream)
    git(upstream, "init")
    git(upstream, "add", ".")
    git(upstream, "commit", "-m", "first")
    git(tmp_path, "clone", upstream, "student")
    return upstream, tmp_path / "student"


def answer(root, grade_id="shift", source=SHIFT):
    """What a student does in work/: an answer, a cell of their own after it, and a run."""
    path = root / "work" / NAME / f"{NAME}.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    place = notebook["cells"].index(cell(notebook["cells"], grade_id))
    notebook["cells"][place]["source"] = source
    notebook["cells"][place]["outputs"] = []
    own = {"cell_type": "code", "id": "own", "metadata": {}, "source": "tried = 7", "outputs": []}
    notebook["cells"].insert(place + 1, {**own, "execution_count": 3})
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return path


def test_a_pull_over_half_done_work_loses_nothing(course):
    upstream, student = course
    assert list(work.take(student)) == [
        "2 assignments were copied to work/. What you write there is yours: git and updates leave it alone."
    ]
    path = answer(student)
    before = path.read_bytes()
    change(upstream, NAME, reworded)
    change(upstream, "06_buckets", lambda cells: cells[2].update(source="Another text."))
    git(upstream, "commit", "-am", "second")
    git(student, "pull")

    assert path.read_bytes() == before
    assert work.changes(NAME, student) == ["shift"]
    said = list(work.take(student))
    assert path.read_bytes() == before
    assert [line.partition(" has changed")[0] for line in said] == [NAME, "06_buckets"]
    assert said[0].endswith(f"make work RENEW={NAME}")

    old = work.renew(NAME, student)
    assert old.read_bytes() == before
    found = sources(path)
    assert "## 1 · Shift, in other words" in found
    assert SHIFT.strip() in [text.strip() for text in found]
    assert found.count("tried = 7") == 1
    handed_out = sources(student / "exercises" / NAME / f"{NAME}.ipynb")
    assert len(found) == len(handed_out) + 1, "no old text is there beside the new one"
    assert work.changes(NAME, student) == []
    again = work.renew(NAME, student)
    assert again != old and old.exists()
    assert sources(path) == found


def test_an_assignment_that_is_not_begun_follows_the_course(course):
    _, student = course
    list(work.take(student))
    change(student, NAME, reworded)
    said = list(work.take(student))
    assert said == [f"{NAME} has changed (shift); you had not begun it, so you have the new one."]
    assert "## 1 · Shift, in other words" in sources(student / "work" / NAME / f"{NAME}.ipynb")
    assert list(work.take(student)) == []


def test_answers_that_were_written_in_exercises_are_kept(course):
    """Somebody has worked there before: the copy is theirs from the start."""
    _, student = course

    def answered(cells):
        cell(cells, "shift")["source"] = SHIFT

    change(student, NAME, answered)
    list(work.take(student))
    git(student, "checkout", "exercises")
    change(student, NAME, reworded)
    [said] = work.take(student)
    assert said.endswith(f"make work RENEW={NAME}")
    path = student / "work" / NAME / f"{NAME}.ipynb"
    assert SHIFT in sources(path)
    work.renew(NAME, student)
    assert SHIFT.strip() in [text.strip() for text in sources(path)]


def test_what_is_left_out_or_new_is_said(course):
    _, student = course
    list(work.take(student))

    def renamed(cells):
        cell(cells, "shift_test")["metadata"]["nbgrader"]["grade_id"] = "moved_test"

    change(student, NAME, renamed)
    assert work.changes(NAME, student) == ["shift", "moved"]


def test_nothing_is_renewed_that_was_not_taken(course):
    _, student = course
    with pytest.raises(ValueError, match="work/02_messages is not there"):
        work.renew(NAME, student)
    assert not (student / "work").exists()


def test_the_copy_comes_before_what_is_handed_out(course):
    _, student = course
    handed_out = student / "exercises" / NAME / f"{NAME}.ipynb"
    assert work.named("messages", student) == handed_out
    list(work.take(student))
    own = student / "work" / NAME / f"{NAME}.ipynb"
    assert [work.named(name, student) for name in (NAME, "messages", "02")] == [own] * 3
    assert work.named("message", student) is None


def test_progress_is_shown_and_kept(course):
    """Right, wrong, open and not begun; what has been examined is examined again only once it has changed."""
    _, student = course
    list(work.take(student))
    examined = []
    found = {e.name: e for e in work.look(NAME, student, examined.append)}
    assert {e.state for e in found.values()} == {"not begun"} and examined == []
    first = list(work.overview(student, say=examined.append))
    assert examined == []
    assert (
        f"Next: shift in work/{NAME}/{NAME}.ipynb, after the lesson in notebooks/{NAME}.ipynb"
        in first
    )

    answer(student)
    answer(student, "all_gather", "def all_gather(comm, x):\n    return [x] * comm.size")
    answer(student, "pieces", "Many, because a line is a pipe.")
    found = {e.name: e for e in work.look(NAME, student, examined.append)}
    assert examined == [NAME]
    states = {name: e.state for name, e in found.items()}
    assert states["shift"] == "right" and found["shift"].got == found["shift"].of == 2
    assert states["all_gather"] == "wrong" and "rank" in found["all_gather"].why
    assert states["pieces"] == "answered" and found["pieces"].by_hand
    assert states["broadcast"] == "not begun" and states["predict"] == "not begun"
    assert {e.name: e for e in work.look(NAME, student, examined.append)} == found
    assert examined == [NAME]

    lines = list(work.overview(student, 60))
    assert all(len(line) <= 60 for line in lines[:4])
    shown = "\n".join(lines)
    assert "✓ shift" in shown and "✗ all_gather" in shown and "○ pieces" in shown
    assert f"Next: broadcast in work/{NAME}/{NAME}.ipynb" in shown


def test_a_notebook_that_cannot_be_read_does_not_hide_the_others(course):
    _, student = course
    list(work.take(student))
    (student / "work" / NAME / f"{NAME}.ipynb").write_text("{")
    lines = list(work.overview(student))
    assert "cannot be read: 02_messages.ipynb is not a notebook" in lines[0]
    assert any("06_buckets" in line for line in lines[1:])


def test_the_command_line(course, monkeypatch, capsys):
    _, student = course
    for name in ("take", "overview", "renew"):
        real = getattr(work, name)
        monkeypatch.setattr(
            work, name, lambda *args, real=real, **more: real(*args, root=student, **more)
        )
    assert __main__.main(["work", "--renew", NAME]) == 2
    assert "Nothing is changed: work/02_messages is not there" in capsys.readouterr().err
    assert __main__.main(["work"]) == 0
    assert "2 assignments were copied" in capsys.readouterr().out
    assert __main__.main([]) == 0
    assert "0 of" in capsys.readouterr().out
    assert __main__.main(["work", "--renew", NAME]) == 0
    assert "before-1" in capsys.readouterr().out
