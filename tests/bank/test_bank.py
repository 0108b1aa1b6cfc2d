"""Every exercise: its solution passes, its stub fails, every planted wrong answer fails with words that help."""

import pytest

from minidist.check import Wrong
from minidist.check.compare import UNKNOWN
from tests.bank.bank import assignment, lessons, planted, run

EXERCISES = [pytest.param(folder, exercise, id=f"{folder.name}-{exercise}")
             for folder in lessons() for exercise in assignment(folder).solutions]
PLANTED = [pytest.param(folder, bug, id=f"{folder.name}-{bug.path.stem}")
           for folder in lessons() for bug in planted(folder)]


def grade(folder, exercise, names):
    run(assignment(folder).tests[exercise], f"<ipython test of {exercise}>", names)


@pytest.mark.parametrize(("folder", "exercise"), EXERCISES)
def test_the_solution_passes(folder, exercise, capsys):
    grade(folder, exercise, assignment(folder).namespace())
    assert f"{exercise}: right." in capsys.readouterr().out


@pytest.mark.parametrize(("folder", "exercise"), EXERCISES)
def test_the_stub_fails(folder, exercise):
    with pytest.raises((Wrong, NameError)) as caught:
        grade(folder, exercise, assignment(folder).namespace(without=exercise))
    assert "not written yet" in str(caught.value) or "not set yet" in str(caught.value)


@pytest.mark.parametrize(("folder", "bug"), PLANTED)
def test_a_planted_answer_fails(folder, bug, capsys):
    names = assignment(folder).namespace()
    run(bug.path.read_text(encoding="utf-8"), f"<ipython {bug.path.stem}>", names)
    with pytest.raises(Wrong) as caught:
        grade(folder, bug.exercise, names)
    text = str(caught.value)
    print(f"{bug.path.stem}: {text}")
    assert text.startswith(f"{bug.exercise}: ") and len(text) > len(bug.exercise) + 20
    assert UNKNOWN not in text
    if not bug.cheat:
        assert "reads and writes no files" not in text and "the library's" not in text


@pytest.mark.parametrize("folder", [pytest.param(f, id=f.name) for f in lessons()])
def test_the_bank_is_large_enough(folder):
    sheet, bank = assignment(folder), planted(folder)
    assert sheet.solutions.keys() == sheet.tests.keys()
    assert len(sheet.tests) >= 4 and sum(sheet.points.values()) >= 10
    for exercise in sheet.solutions:
        mine = [bug for bug in bank if bug.exercise == exercise]
        assert len([bug for bug in mine if not bug.cheat]) >= 5, exercise
        assert len([bug for bug in mine if bug.cheat]) >= 2, exercise
    assert {bug.exercise for bug in bank} == sheet.solutions.keys()
    assert all(bug.why for bug in bank)


def test_the_bug_to_find_is_a_planted_one():
    [folder] = [f for f in lessons() if f.name == "02_messages"]
    shown = [source for source, exercise in assignment(folder).cells if exercise is None and "def ring_sum" in source]
    bug = (folder / "bugs" / "ring_sum_passes_total.py").read_text(encoding="utf-8")
    assert bug.partition('"""\n\n')[2].strip() == shown[0].strip()
