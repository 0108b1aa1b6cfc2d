"""Graders of the exercises.

`check.all_reduce(yours)` prints a line if the answer is right, and raises `Wrong`, with a message that teaches, if not.

    exam, compare     how to write an examination, and say what a wrong tensor looks like
    guard, examinee   an answer runs in fresh processes, and is judged outside of them
    walls, messages, topology, data_parallel, buckets   the exercises of lessons 01 to 05
    prediction        numbers that a learner foretells
    notebook, regrade a whole notebook, without nbgrader (`python -m minidist.check NOTEBOOK`) and with it
"""

from .buckets.assign import assign_buckets, bucketed
from .buckets.norm import sync_backward, sync_statistics
from .buckets.overlap import accumulate_overlapped, overlapped
from .buckets.seconds import predict_overlap, step_seconds
from .data_parallel.batches import accumulate, my_batches
from .data_parallel.gradients import average_gradients, average_hooks, weighted_average_gradients
from .data_parallel.start import start_equal
from .data_parallel.step import predict_step
from .exam import Case, Exam, Outcome, Packed, ask
from .messages.point import broadcast, shift
from .messages.ring import all_gather, all_reduce, reduce_scatter, ring_sum
from .prediction import predict
from .topology.cost import all_reduce_seconds, bandwidth, predict_cost
from .topology.halving import halving_doubling
from .topology.nodes import hierarchical
from .topology.slow import find_slow
from .topology.tree import pipeline, tree_broadcast
from .walls.activations import activation_bytes
from .walls.claims import find_errors, predict_memory
from .walls.cost import run_cost
from .walls.events import peak
from .walls.lean import train_lean
from .walls.size import largest_model
from .walls.states import model_states
from .wrong import Wrong

__all__ = ["Case", "Exam", "Outcome", "Packed", "Wrong", "accumulate", "accumulate_overlapped", "activation_bytes",
           "all_gather", "all_reduce", "all_reduce_seconds", "ask", "assign_buckets", "average_gradients",
           "average_hooks", "bandwidth", "broadcast", "bucketed", "find_errors", "find_slow", "halving_doubling",
           "hierarchical", "largest_model", "model_states", "my_batches", "overlapped", "peak", "pipeline",
           "predict", "predict_cost", "predict_memory", "predict_overlap", "predict_step", "reduce_scatter",
           "ring_sum", "run_cost", "shift", "start_equal", "step_seconds", "sync_backward", "sync_statistics",
           "train_lean", "tree_broadcast", "weighted_average_gradients"]  # fmt: skip
