"""Whether a lesson's solutions, stubs and planted answers do what they are there for: pytest and the command ask here.

Each function returns what is wrong, in words; an empty string or list: nothing is. An exercise is judged as a whole:
a launch for all its answers costs a fraction of one for each.
"""

import contextlib
import io
import sys
import warnings
from collections import Counter, defaultdict
from functools import partial
from unittest.mock import patch

from minicheck import Wrong, guard
from minicheck.exam import FAILED, UNKNOWN
from tests.bank.bank import assignment, planted, run

NOT_DONE = ("not written yet", "not set yet")
PASSES = "it passes"
FOR_CHEATS = ("reads and writes no files", "the library's")


def exercise_faults(folder, exercise, solution=True):
    """By answer (a planted one, "solution", "stub") what is wrong with how the grader judges it. The solution, which goes
    through all cases and takes the longest, may be left out."""
    faults = {"solution": partial(solution_fault, folder, exercise)} if solution else {}
    faults["stub"] = partial(stub_fault, folder, exercise)
    for bug in planted(folder):
        if bug.exercise == exercise:
            faults[bug] = partial(planted_fault, folder, bug)
    return dict(zip(faults, together(list(faults.values())), strict=True))


class _Asked(BaseException):
    """Unwinds a grader at an examination whose result is not known yet. No grader catches it."""


def together(judgements):
    """What each of `judgements` returns. What their graders ask of guards is collected, and asked in one launch for
    each kind of examination; a judgement begins anew when an answer to it has come."""
    replies, results = [[] for _ in judgements], {}
    while len(results) < len(judgements):
        asked = defaultdict(list)
        for i in [i for i in range(len(judgements)) if i not in results]:
            with patch.object(guard, "examinations", partial(_replied, iter(replies[i]))):
                try:
                    results[i] = judgements[i]()
                except _Asked as question:
                    exam, [answer] = question.args
                    asked[exam].append((i, answer))
        for exam, rows in asked.items():
            found = guard.examinations(exam, [answer for _, answer in rows])
            for (i, _), wrong in zip(rows, found, strict=True):
                replies[i].append([wrong])
    return [results[i] for i in range(len(judgements))]


def _replied(known, exam, answers):
    """In place of `examinations`: the next result that is known."""
    for reply in known:
        return reply
    raise _Asked(exam, answers)


def examined(folder, exercise, names):
    """What the grader prints for an answer, and what it raises, or None."""
    printed, error = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        try:
            run(assignment(folder).tests[exercise], f"<ipython test of {exercise}>", names)
        except (Wrong, NameError) as raised:
            error = raised
    return printed.getvalue(), error


def solution_fault(folder, exercise):
    """The solution is right, and the grader says so."""
    printed, error = examined(folder, exercise, assignment(folder).namespace())
    if error is not None:
        return f"the solution fails: {error}"
    return (
        ""
        if f"{exercise}: right." in printed
        else f"the grader does not say that it is right: {printed!r}"
    )


def stub_fault(folder, exercise):
    """The stub fails, as something that has not been written."""
    _, error = examined(folder, exercise, assignment(folder).namespace(without=exercise))
    if error is None:
        return "the stub passes"
    return (
        ""
        if any(words in str(error) for words in NOT_DONE)
        else f"the stub fails with other words: {error}"
    )


def planted_fault(folder, bug):
    """A planted answer is found to be wrong, with words that help. What is drawn may hide a mistake once, not again."""
    found = judged(folder, bug)
    if found == PASSES:
        again = [judged(folder, bug) for _ in range(2)]
        passed = f"{bug.exercise}: {bug.title}: passed once: could a case that is not drawn show the mistake?"
        warnings.warn(passed, stacklevel=2)
        found = next((fault for fault in again if fault), "")
    return found


@contextlib.contextmanager
def graders_kept():
    """Undo what a cheat has done to the graders' classes: the next answers are judged in this process, too."""
    classes = []
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "minicheck":
            classes += [v for v in vars(module).values() if isinstance(v, type)]
    ours = [kind for kind in classes if kind.__module__.startswith("minicheck")]
    before = {kind: vars(kind).copy() for kind in ours}
    try:
        yield
    finally:
        for kind, kept in before.items():
            for name in vars(kind).keys() - kept.keys():
                delattr(kind, name)
            for name, value in kept.items():
                if vars(kind).get(name) is not value:
                    setattr(kind, name, value)


def judged(folder, bug):
    """What is wrong with one examination of a planted answer."""
    names = assignment(folder).namespace()
    try:
        code = bug.code(assignment(folder).solutions[bug.exercise])
    except ValueError as error:
        return str(error)
    # a mistake leaves them alone, and to look at all of them takes longer than to ask
    with graders_kept() if bug.cheat else contextlib.nullcontext():
        run(code, "<ipython planted>", names)  # one name: a launch sends all cells along
        _, error = examined(folder, bug.exercise, names)
    if not isinstance(error, Wrong):
        return PASSES if error is None else f"the grader itself fails: {error}"
    print(f"{bug.title}: {error}")
    return words_fault(bug, str(error))


def words_fault(bug, text):
    """What the message to a planted answer lacks."""
    if not text.startswith(f"{bug.exercise}: ") or len(text) <= len(bug.exercise) + 20:
        return f"the message does not begin with the exercise's name, or says nothing: {text}"
    if FAILED in text:
        return f"the grader itself fails: {text}"
    if UNKNOWN in text:
        return f"the message does not know the mistake: {text}"
    if not bug.cheat and any(words in text for words in FOR_CHEATS):
        return f"a mistake is called a cheat: {text}"
    return ""


def bank_faults(folder):
    """Enough exercises, points, planted answers and cheats."""
    sheet, bank = assignment(folder), planted(folder)
    if sheet.solutions.keys() != sheet.tests.keys():
        return [f"solutions of {sorted(sheet.solutions)}, but tests of {sorted(sheet.tests)}"]
    points = sum(sheet.points.values())
    found = [f"{len(sheet.tests)} exercises and {points} points, and should be at least 4 and 10"]
    found = found if len(sheet.tests) < 4 or points < 10 else []
    for exercise in sheet.solutions:
        cheats = [bug.cheat for bug in bank if bug.exercise == exercise]
        if cheats.count(False) < 5 or cheats.count(True) < 2:
            found.append(
                f"{exercise}: {cheats.count(False)} planted mistakes and {cheats.count(True)} cheats, "
                "and should be at least 5 and 2"
            )
    found += [
        f"{bug.title}: no such exercise: {bug.exercise}"
        for bug in bank
        if bug.exercise not in sheet.tests
    ]
    titles = Counter((bug.exercise, bug.title) for bug in bank)
    found += [
        f"{exercise}: {times} answers have the title {title!r}"
        for (exercise, title), times in titles.items()
        if times > 1
    ]
    return found + [
        f"{bug.exercise}: an answer does not say what is wrong" for bug in bank if not bug.title
    ]
