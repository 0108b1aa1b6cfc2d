"""Predictions: each student has numbers of their own, and what is right for them is right."""

import importlib
import math
from itertools import product

import pytest

from minicheck import Wrong
from minicheck.exam import Prediction, encode
from minicheck.guard import graders
from tests.minicheck.predicted import slips_are_wrong
from tests.repository.files import ROOT

LESSONS = sorted(path.stem for path in (ROOT / "minicheck/lessons").glob("[a-z]*.py"))


def predictions(lesson):
    module = importlib.import_module(f"minicheck.lessons.{lesson}")
    return [value for value in vars(module).values() if isinstance(value, Prediction)]


def test_each_lesson_has_one():
    assert [lesson for lesson in LESSONS if len(predictions(lesson)) != 1] == []


@pytest.mark.parametrize("lesson", LESSONS)
def test_whatever_is_drawn(lesson):
    [exam] = predictions(lesson)
    usual = exam.figures()
    assert exam.own
    for values in product(*[choices for _, choices in exam.own.values()]):
        facts = exam.figures(**dict(zip(exam.own, values)))
        assert all(math.isfinite(value) for value in facts[0].values())
        assert slips_are_wrong(facts), values
        assert facts[0] != usual[0]
    for name, (words, choices) in exam.own.items():
        assert len({words.format(value) for value in choices}) == len(choices), name
        alone = [exam.figures(**{name: value})[0] for value in choices]
        assert all(found != usual[0] for found in alone), name


def twice(n=2):
    """What is asked."""
    return {"twice": 2 * n}, {"twice": {n: "That is once."}}


EXAM = Prediction(twice, "", {"n": ("n = {}", (3, 5, 7))})
NAMES = [f"student {k}" for k in range(300)]


def test_a_name_has_its_numbers():
    drawn = [EXAM.drawn(name)["n"] for name in NAMES]
    assert all(drawn.count(n) > 60 for n in (3, 5, 7))
    assert EXAM.drawn(" Ada  Lovelace ") == EXAM.drawn("ada lovelace")
    assert EXAM.drawn(None) == EXAM.drawn("") == EXAM.drawn("  ") == {}


def test_the_numbers_are_told_and_judged(capsys):
    name = next(name for name in NAMES if EXAM.drawn(name)["n"] == 7)
    grader = graders(type("Lesson", (), {"EXAM": EXAM}))["twice"]
    grader.numbers(name)
    assert capsys.readouterr().out == f"{name}: in place of the numbers above you have n = 7.\n"
    grader.numbers(None)
    assert capsys.readouterr().out == ""
    grader(14, of=name)
    grader(4)
    with pytest.raises(
        Wrong, match=r"twice = 4 is too small\. That is right for the numbers in the text"
    ):
        grader(4, of=name)
    with pytest.raises(Wrong, match=r"twice = 7 is too small\. That is once\."):
        grader(7, of=name)
    with pytest.raises(Wrong, match='STUDENT is a name in quotes, as "Ada", not int'):
        grader(4, of=7)


def test_a_name_that_cannot_be_read():
    with pytest.raises(Wrong, match="your numbers cannot be read"):
        EXAM.compare([encode(4)], encode("Ada")[:-1])
