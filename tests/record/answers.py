"""What graders say of every planted answer and of every solution, with the same numbers drawn each time.

Only here are the drawn numbers known: `minicheck.guard.examinations` is handed a seed.
"""

import re
from functools import partial
from unittest.mock import patch

from minicheck import guard
from tests.bank.bank import assignment, lessons, planted, run
from tests.bank.judge import examined, together

SEED = 1


def verdicts():
    """{"lesson, exercise: what is wrong": the grader's words, numbers masked}."""
    found = {}
    seeded = partial(guard.examinations, seed=SEED)
    with patch.object(guard, "examinations", seeded):
        for folder in lessons():
            for exercise in assignment(folder).solutions:
                bugs = [bug for bug in planted(folder) if bug.exercise == exercise]
                jobs = [partial(said, folder, exercise, bug) for bug in [None, *bugs]]
                names = ["the solution", *(bug.title for bug in bugs)]
                for name, words in zip(names, together(jobs), strict=True):
                    found[f"{folder.name}, {exercise}: {name}"] = words
    return found


def said(folder, exercise, bug):
    """What the grader says of a planted answer, or of the solution."""
    names = assignment(folder).namespace()
    if bug is not None:
        run(bug.code(assignment(folder).solutions[exercise]), "<ipython planted>", names)
    printed, error = examined(folder, exercise, names)
    return masked(printed if error is None else f"{type(error).__name__}: {error}")


def masked(words):
    """Numbers depend on rounding, on the processor and on the length of a run: whether they are there does not. The
    line of the cell at which an answer failed, or was found waiting, is not the grader's word."""
    words = re.sub(r"\n  in [^\n]*, line \d+ of the cell[^\n]*", "", words)
    return re.sub(r"[-−+]?\d[\d,.]*(e[-+]?\d+)?", "#", words)
