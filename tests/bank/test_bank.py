"""Every exercise: its solution passes, its stub fails, every planted wrong answer fails with words that help."""

import pytest

from tests.bank.bank import ROOT, assignment, lessons, planted
from tests.bank.judge import bank_faults, planted_fault, solution_fault, stub_fault

EXERCISES = [pytest.param(folder, exercise, id=f"{folder.name}-{exercise}")
             for folder in lessons() for exercise in assignment(folder).solutions]
PLANTED = [pytest.param(folder, bug, id=f"{folder.name}-{bug.path.stem}")
           for folder in lessons() for bug in planted(folder)]


@pytest.mark.parametrize(("folder", "exercise"), EXERCISES)
def test_the_solution_passes(folder, exercise):
    assert solution_fault(folder, exercise) == ""


@pytest.mark.parametrize(("folder", "exercise"), EXERCISES)
def test_the_stub_fails(folder, exercise):
    assert stub_fault(folder, exercise) == ""


@pytest.mark.parametrize(("folder", "bug"), PLANTED)
def test_a_planted_answer_fails(folder, bug):
    assert planted_fault(folder, bug) == ""


@pytest.mark.parametrize("folder", [pytest.param(f, id=f.name) for f in lessons()])
def test_the_bank_is_large_enough(folder):
    assert bank_faults(folder) == []


def test_the_bug_to_find_is_a_planted_one():
    folder = ROOT / "course" / "02_messages"
    shown = [source for source, exercise in assignment(folder).cells if exercise is None and "def ring_sum" in source]
    bug = (folder / "bugs" / "ring_sum_passes_total.py").read_text(encoding="utf-8")
    assert bug.partition('"""\n\n')[2].strip() == shown[0].strip()
