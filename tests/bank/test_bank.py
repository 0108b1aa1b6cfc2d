"""Every exercise: its stub fails, every planted wrong answer fails with words that help. (That its solution passes, nbval
finds out, which runs the solved notebook; so does `python -m tests.bank`.)"""

import pytest

from tests.bank.bank import ROOT, assignment, lessons, shows_bug
from tests.bank.judge import bank_faults, exercise_faults

EXERCISES = [
    pytest.param(folder, exercise, id=f"{folder.name}-{exercise}")
    for folder in lessons()
    for exercise in assignment(folder).solutions
]


@pytest.mark.parametrize(("folder", "exercise"), EXERCISES)
def test_the_grader_knows_right_from_wrong(folder, exercise):
    faults = exercise_faults(folder, exercise, solution=False)
    assert {answer: fault for answer, fault in faults.items() if fault} == {}


@pytest.mark.parametrize("folder", [pytest.param(f, id=f.name) for f in lessons()])
def test_the_bank_is_large_enough(folder):
    assert bank_faults(folder) == []


def test_the_bug_to_find_is_a_planted_one():
    title = "the total is passed on, so that some ranks are counted again"
    assert shows_bug(ROOT / "course" / "02_messages", "ring_sum", title)
