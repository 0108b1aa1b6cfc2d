"""What tests of graders share: random numbers, and an examination without processes of its own."""

import torch

from minidist.check import Wrong
from minidist.check.exam import Outcome


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
