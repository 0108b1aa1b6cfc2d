"""What is left of the files of the examinations in the process of an answer."""

import os
import sys
from functools import partial

import pytest

import minicheck
from minicheck import refuse
from minicheck.asking import FILES, JUDGES, keep_asking
from minicheck.exam import Exam, Prediction

SECRETS = {
    "bandwidth": ("minicheck.lessons.topology", ["FACTORS", "whole", "Bandwidth", "size_of"]),
    "all_reduce": ("minicheck.lessons.messages", ["sum_of", "wrong_part"]),
    "model_states": ("minicheck.oracles.walls", ["KEPT", "WEIGHT", "states"]),
}


def left(name):
    """{module: names} of these files in a process that asks this examination, and its own class's."""
    exam = getattr(minicheck, name).exam
    keep_asking(exam)
    modules = [module for module in sys.modules if refuse.under(module, FILES)]
    return {module: {*vars(sys.modules[module])} for module in modules}, own_names(exam)


def own_names(exam):
    """What the examination's classes have, but for those that all have."""
    kinds = [kind for kind in type(exam).__mro__ if refuse.under(kind.__module__, FILES)]
    return set().union(*map(vars, kinds))


def in_a_fork(act):
    """Whether `act` is true in a process of its own."""
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            code = 0 if act() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("name", SECRETS)
def test_the_judges_half_is_gone(name):
    module, names = SECRETS[name]
    there = vars(sys.modules[module])
    assert all(n in there for n in names)  # as long as it was not forked

    def gone():
        found, own = left(name)
        return not found[module] & {*names} and not own & {*JUDGES}

    assert in_a_fork(gone)


def test_what_asks_is_there():
    """`metered` of lesson 01, its class `Given`, and the tables that they use."""

    def there():
        found, own = left("train_lean")
        names = {"metered", "Given", "OPTIMIZERS", "loss_of"}
        return found["minicheck.lessons.walls"] >= names and "run" in own

    assert in_a_fork(there)


def asks_only(exam):
    keep_asking(exam)
    return callable(exam.run) and not own_names(exam) & {*JUDGES}


def test_each_examination_keeps_its_run():
    """Whatever is asked by a `run` of a lesson's own has it, and has no judge's half."""
    assert all(in_a_fork(partial(asks_only, exam)) for exam in EXAMS)


EXAMS = [g.exam for g in vars(minicheck).values() if isinstance(getattr(g, "exam", None), Exam)]
EXAMS = [exam for exam in EXAMS if not isinstance(exam, Prediction)]
