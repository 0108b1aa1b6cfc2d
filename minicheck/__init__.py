"""Graders of the exercises.

`check.all_reduce(yours)` prints a line if the answer is right, and raises `Wrong`, with a message that teaches, if not.
In a notebook, importing this package starts the server of `launch` in the background, so that the first answer is not
waited for either.

    exam              how to write an examination, how a wrong answer is described, numbers that a learner predicts
    guard, examinee, refuse   an answer runs in fresh processes, where it can do no harm, and is judged outside of them
    asking, kernel, relay     what such a process has of an examination, what it may do, what it may send
    lessons           the exercises, one file a lesson
    oracles           right answers that the answers must not reach, by lesson
    limit             of time, for a picture that an answer draws in the notebook itself
    notebook, regrade a whole notebook, without nbgrader (`python -m minicheck NOTEBOOK`) and with it
    grade, uploads, tables    a class (`python -m minicheck grade SUBMITTED`)
"""

import pkgutil
from importlib import import_module

from minidist.comm.launch import prepare

from . import lessons
from .exam import Case, Exam, Outcome, Packed, Wrong
from .guard import ask, graders
from .limit import limit

for _lesson in pkgutil.iter_modules(lessons.__path__, f"{lessons.__name__}."):
    globals().update(graders(import_module(_lesson.name)))

prepare()
