"""What is left of the files of the examinations in the process of an answer."""

import os

import pytest

import minicheck
from minicheck import refuse
from minicheck.asking import FILES, JUDGES, keep_asking
from minicheck.exam import Exam, Prediction

SECRETS = {
    "bandwidth": ("minicheck.lessons.topology", ["FACTORS", "clock", "Bandwidth", "slips_of"]),
    "all_reduce": ("minicheck.lessons.messages", ["sum_of", "wrong_part"]),
    "model_states": ("minicheck.oracles.walls", ["KEPT", "WEIGHT", "states"]),
}


def left(name):
    """{module: names} of these files in a process that asks this examination, and its own class's."""
    exam = getattr(minicheck, name).exam
    keep_asking(exam)
    found = {
        module: {n for n in vars(sys_module) if not n.startswith("__")}
        for module, sys_module in refuse.sys.modules.items()
        if refuse.under(module, FILES)
    }
    kinds = [kind for kind in type(exam).__mro__ if kind not in (Exam, object)]
    return found, {n for kind in kinds for n in vars(kind) if refuse.under(kind.__module__, FILES)}


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
    there = vars(refuse.sys.modules[module])
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


def test_each_examination_keeps_its_run():
    """Whatever is asked by a `run` of a lesson's own has it, and has no judge's half."""

    def kept():
        return all(
            in_a_fork(
                lambda exam=exam: (
                    keep_asking(exam) is None
                    and callable(exam.run)
                    and not any(
                        n in vars(k)
                        for k in type(exam).__mro__[:-2]
                        if k.__module__ in MINE
                        for n in JUDGES
                    )
                )
            )
            for exam in EXAMS
        )

    assert kept()


EXAMS = [g.exam for g in vars(minicheck).values() if isinstance(getattr(g, "exam", None), Exam)]
EXAMS = [exam for exam in EXAMS if not isinstance(exam, Prediction)]
MINE = {type(exam).__module__ for exam in EXAMS}
