"""Graders of the exercises.

`check.all_reduce(yours)` prints a line if the answer is right, and raises `Wrong`, with a message that teaches, if not.

    exam, compare     how to write an examination, and say what a wrong tensor looks like
    guard, examinee   an answer runs in fresh processes, and is judged outside of them
    messages, ring, prediction   the exercises of lesson 02
    notebook, regrade a whole notebook, without nbgrader (`python -m minidist.check NOTEBOOK`) and with it
"""

from .exam import Case, Exam, Outcome, Packed, ask
from .messages import broadcast, shift
from .prediction import predict
from .ring import all_gather, all_reduce, reduce_scatter, ring_sum
from .wrong import Wrong

__all__ = ["Case", "Exam", "Outcome", "Packed", "Wrong", "all_gather", "all_reduce", "ask", "broadcast", "predict",
           "reduce_scatter", "ring_sum", "shift"]  # fmt: skip
