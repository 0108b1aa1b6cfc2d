"""What tests of graders share: random numbers, an examination without processes of its own, and many in one launch."""

import re
from functools import partial

import torch

from minicheck import Wrong
from minicheck.exam import Outcome
from tests.bank.judge import together


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def said(exam, answer, case, seed=0):
    """What an exam finds wrong with an answer in a case, or ""."""
    args = exam.draw(case, rng(seed))
    world = exam.world(case.n, args)
    results = world.run(lambda comm, some: exam.run(comm, answer, *some[comm.rank]), args)
    outcome = Outcome(list(results), [(m.src, m.dst, m.nbytes) for m in world.trace], world.time)
    try:
        exam.judge(case, args, outcome)
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
