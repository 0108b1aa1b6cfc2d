"""Every exercise: its solution passes, its stub fails, every planted wrong answer fails with words that help."""

import pytest

from tests.bank.bank import ROOT, assignment, lessons
from tests.bank.judge import bank_faults, exercise_faults

EXERCISES = [pytest.param(folder, exercise, id=f"{folder.name}-{exercise}")
             for folder in lessons() for exercise in assignment(folder).solutions]


@pytest.mark.parametrize(("folder", "exercise"), EXERCISES)
def test_the_grader_knows_right_from_wrong(folder, exercise):
    assert {answer: fault for answer, fault in exercise_faults(folder, exercise).items() if fault} == {}


@pytest.mark.parametrize("folder", [pytest.param(f, id=f.name) for f in lessons()])
def test_the_bank_is_large_enough(folder):
    assert bank_faults(folder) == []


def test_the_bug_to_find_is_a_planted_one():
    folder = ROOT / "course" / "02_messages"
    shown = [source for source, exercise in assignment(folder).cells if exercise is None and "def ring_sum" in source]
    bug = (folder / "bugs" / "ring_sum_passes_total.py").read_text(encoding="utf-8")
    assert bug.partition('"""\n\n')[2].strip() == shown[0].strip()
