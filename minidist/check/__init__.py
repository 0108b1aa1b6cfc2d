"""Graders of the exercises.

`check.all_reduce(yours)` prints a line if the answer is right, and raises `Wrong`, with a message that teaches, if not.

    exam, compare     how to write an examination, and say what a wrong tensor looks like
    guard, examinee   an answer runs in fresh processes, and is judged outside of them
    messages, data_parallel   the exercises of lessons 02 and 04; prediction   numbers that a learner foretells
    notebook, regrade a whole notebook, without nbgrader (`python -m minidist.check NOTEBOOK`) and with it
"""

from .data_parallel.batches import accumulate, my_batches
from .data_parallel.gradients import average_gradients, average_hooks, weighted_average_gradients
from .data_parallel.start import start_equal
from .data_parallel.step import predict_step
from .exam import Case, Exam, Outcome, Packed, ask
from .messages.point import broadcast, shift
from .messages.ring import all_gather, all_reduce, reduce_scatter, ring_sum
from .prediction import predict
from .wrong import Wrong

__all__ = ["Case", "Exam", "Outcome", "Packed", "Wrong", "accumulate", "all_gather", "all_reduce", "ask",
           "average_gradients", "average_hooks", "broadcast", "my_batches", "predict", "predict_step", "reduce_scatter",
           "ring_sum", "shift", "start_equal", "weighted_average_gradients"]  # fmt: skip
