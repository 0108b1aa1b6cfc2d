"""What tests of graders share: random numbers, an examination without processes of its own, and many in one launch."""

import re
from functools import partial

import torch

import minicheck as check
from minicheck import Wrong
from minicheck.exam import Exam, Outcome, Solo, decode, encode, waited
from tests.bank.bank import ROOT, Bug, assignment, run
from tests.bank.judge import examined, together


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def said(exam, answer, case, seed=0):
    """What an exam finds wrong with an answer in a case, or ""."""
    args = exam.draw(case, rng(seed))
    world = exam.world(case.n, args)
    results = world.run(lambda comm, some: exam.run(comm, answer, *some[comm.rank]), args)
    outcome = Outcome(
        decode(encode(list(results))), [(m.src, m.dst, m.nbytes) for m in world.trace], world.time
    )
    try:
        exam.judge(case, args, outcome)
        waited(outcome)
        for promise in exam.promises:
            getattr(exam, promise)(case, args, outcome)
    except Wrong as wrong:
        return str(wrong)
    return ""


def verdicts(*asked):
    """What is wrong, or None, with each of the answers, given as (grader, answer): in one launch for each exam."""
    return together([partial(_verdict, grader, answer) for grader, answer in asked])


def _verdict(grader, answer):
    try:
        return grader(answer)
    except Wrong as wrong:
        return str(wrong)


def accepted(grader, answers):
    """Those of the answers, by name or by number, that the grader takes for right."""
    named = answers if isinstance(answers, dict) else dict(enumerate(answers))
    found = verdicts(*[(grader, answer) for answer in named.values()])
    return [name for name, wrong in zip(named, found, strict=True) if wrong is None]


def assert_wrong(words, grader, answers):
    """Each of the answers is found to be wrong, with these words."""
    named = answers if isinstance(answers, dict) else dict(enumerate(answers))
    for name, wrong in zip(
        named, verdicts(*[(grader, answer) for answer in named.values()]), strict=True
    ):
        assert wrong and re.search(words, wrong), (name, wrong)


def refused(lesson, styles):
    """What the graders of a lesson say of right answers, each the solution in another style: (exercise, old lines, new
    ones)."""
    folder = ROOT / "course" / lesson
    answers = [Bug(exercise, "another style", old, new) for exercise, old, new in styles]
    found = together([partial(_refused, folder, answer) for answer in answers])
    return {answer.new: wrong for answer, wrong in zip(answers, found, strict=True) if wrong}


def _refused(folder, answer):
    names = assignment(folder).namespace()
    run(answer.code(assignment(folder).solutions[answer.exercise]), "<ipython style>", names)
    return examined(folder, answer.exercise, names)[1]


ODD = {
    "no number": (None, True, "x", 1j, object()),
    "a number": (-1, float("nan"), float("inf"), 10**400, torch.tensor(3), torch.tensor([True])),
    "a list": ([], [[]], [None], (1, "x"), [(1, None)], [torch.arange(3)], [torch.randn(2)] * 3),
    "a dict": ({}, {1: None}),
    "a tensor": (torch.tensor([]), torch.randn(2, 3), torch.randn(3).half(), torch.arange(3)),
}


def assert_odd_answers_are_told(lesson):
    """Whatever an answer returns, the first case of an exam says in words what is wrong with it: no traceback."""
    kinds = [
        kind for kind in vars(lesson).values() if isinstance(kind, type) and issubclass(kind, Exam)
    ]
    for exam in [kind() for kind in kinds if "name" in vars(kind)]:
        for odd in [value for values in ODD.values() for value in values]:
            answer = partial(_odd, odd) if exam.functions else odd
            words = said(exam, answer, exam.cases[0])
            assert words or odd is None, (exam.name, odd)
            assert len(words) < 600, (exam.name, words)


def _odd(value, *given):
    return value


def assert_whoever_raises_is_no_rank(lesson):
    """An answer on one machine that raises is told so as `your code`, with its line, and not as a rank."""

    def raises(*given):
        raise ValueError("no")

    kinds = [kind for kind in vars(lesson).values() if isinstance(kind, type)]
    alone = [kind for kind in kinds if issubclass(kind, Solo) and "name" in vars(kind)]
    named = [kind.name for kind in alone if kind.functions]
    found = verdicts(*[(getattr(check, name), raises) for name in named])
    assert named
    for name, wrong in zip(named, found, strict=True):
        assert "your code raised ValueError: no" in wrong and "in raises" in wrong, (name, wrong)
        assert not re.search(r"\brank 0\b", wrong), (name, wrong)
