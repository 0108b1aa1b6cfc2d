"""Graders of the exercises.

`check.all_reduce(yours)` prints a line if the answer is right, and raises `Wrong`, with a message that teaches, if not.
In a notebook, importing this package starts the server of `launch` in the background, so that the first answer is not
waited for either.

    exam, compare     how to write an examination, and say what a wrong tensor looks like
    guard, examinee   an answer runs in fresh processes, and is judged outside of them
    walls, messages, topology, data_parallel, buckets   the exercises of lessons 01 to 05
    server            those of lesson 06
    precision         those of lesson 07
    remat             those of lesson 08
    operators         those of lesson 09
    tensor            those of lesson 11
    vocabulary        those of lesson 12
    pipelines         those of lesson 13
    pipedream         those of lesson 14
    hybrid            those of lesson 15
    zero              those of lesson 10
    talk_less         those of lesson 16
    large_batches     those of lesson 17
    survive           those of lesson 18
    capstone          those of lesson 19
    prediction        numbers that a learner foretells
    notebook, regrade a whole notebook, without nbgrader (`python -m minicheck NOTEBOOK`) and with it
"""

from minidist.comm.launch import prepare

from .buckets.assign import assign_buckets, bucketed
from .buckets.norm import sync_backward, sync_statistics
from .buckets.overlap import accumulate_overlapped, overlapped
from .buckets.seconds import predict_overlap, step_seconds
from .capstone.ddp import ddp_ring, mean_hook
from .capstone.flat import gather_single, reduce_single
from .capstone.later import later
from .capstone.numbers import predict_capstone
from .data_parallel.batches import accumulate, my_batches
from .data_parallel.gradients import average_gradients, average_hooks, weighted_average_gradients
from .data_parallel.start import start_equal
from .data_parallel.step import predict_step
from .exam import Case, Exam, Outcome, Packed, ask
from .hybrid import best_grid, clip_grid, groups, predict_hybrid, step_bytes, synchronize
from .large_batches.clip import clip_copies
from .large_batches.lamb import lamb_step
from .large_batches.lars import lars_step
from .large_batches.noise import noise_scale
from .large_batches.numbers import predict_large_batches
from .large_batches.schedule import learning_rate
from .messages.point import broadcast, shift
from .messages.ring import all_gather, all_reduce, reduce_scatter, ring_sum
from .operators.flat import flatten
from .operators.gelu import bias_gelu
from .operators.graph import fused, roofline
from .operators.numbers import predict_operators
from .operators.softmax import attention, normalizer
from .pipedream.buffers import two_versions
from .pipedream.numbers import predict_pipedream
from .pipedream.orders import needed, no_flush, staleness
from .pipedream.stage import run_pipedream
from .pipedream.store import store
from .pipelines.cut import cut
from .pipelines.halves import split_backward
from .pipelines.orders import one_f_one_b, zero_bubble
from .pipelines.seconds import predict_pipeline, step_time
from .pipelines.stage import run_stage
from .precision.lists import autocast
from .precision.masters import master_step
from .precision.numbers import predict_precision
from .precision.rounding import round_to
from .precision.scale import scaler
from .precision.together import sharded_step
from .prediction import predict
from .remat.chain import best_plan, segments
from .remat.numbers import predict_remat
from .remat.recompute import recompute
from .remat.replay import twice
from .remat.reverse import reversible_backward
from .remat.tokens import accumulate_tokens
from .server.arrivals import asynchronous, bounded, leavers
from .server.numbers import predict_server
from .server.pieces import pieces
from .server.rounds import synchronous
from .survive import load_box, newest, predict_survive, save_every, save_parts
from .talk_less.local import local_sgd, next_period
from .talk_less.numbers import predict_talk_less
from .talk_less.signs import sign_average
from .talk_less.sparse import compress, sparse_mean
from .tensor.figures import predict_tensor
from .tensor.heads import my_heads
from .tensor.layers import mlp, row_linear
from .tensor.operators import copy_to, reduce_from
from .tensor.sequence import sequence_norm, sequence_pair
from .topology.cost import all_reduce_seconds, bandwidth, predict_cost
from .topology.halving import halving_doubling
from .topology.nodes import hierarchical
from .topology.slow import find_slow
from .topology.tree import pipeline, tree_broadcast
from .vocabulary.loss import logits_gradient, merged_loss, split_loss
from .vocabulary.numbers import predict_vocabulary
from .vocabulary.rows import look_up, look_up_gradient, project_backward
from .walls.activations import activation_bytes
from .walls.claims import find_errors, predict_memory
from .walls.cost import run_cost
from .walls.events import peak
from .walls.lean import train_lean
from .walls.size import largest_model
from .walls.states import model_states
from .wrong import Wrong
from .zero.clip import clip
from .zero.hooks import to_owners
from .zero.layer import sharded_linear
from .zero.numbers import predict_zero
from .zero.owners import owners
from .zero.step import sharded

__all__ = [
    "Case",
    "Exam",
    "Outcome",
    "Packed",
    "Wrong",
    "accumulate",
    "accumulate_overlapped",
    "activation_bytes",
    "all_gather",
    "all_reduce",
    "all_reduce_seconds",
    "ask",
    "assign_buckets",
    "average_gradients",
    "average_hooks",
    "bandwidth",
    "broadcast",
    "bucketed",
    "find_errors",
    "find_slow",
    "halving_doubling",
    "hierarchical",
    "largest_model",
    "model_states",
    "my_batches",
    "overlapped",
    "peak",
    "pipeline",
    "predict",
    "predict_cost",
    "predict_memory",
    "predict_overlap",
    "predict_step",
    "reduce_scatter",
    "ring_sum",
    "run_cost",
    "shift",
    "start_equal",
    "step_seconds",
    "sync_backward",
    "sync_statistics",
    "train_lean",
    "tree_broadcast",
    "weighted_average_gradients",
    "copy_to",
    "mlp",
    "my_heads",
    "predict_tensor",
    "reduce_from",
    "row_linear",
    "sequence_norm",
    "sequence_pair",
    "logits_gradient",
    "look_up",
    "look_up_gradient",
    "merged_loss",
    "predict_vocabulary",
    "project_backward",
    "split_loss",
    "cut",
    "one_f_one_b",
    "predict_pipeline",
    "run_stage",
    "split_backward",
    "step_time",
    "zero_bubble",
    "autocast",
    "master_step",
    "predict_precision",
    "round_to",
    "scaler",
    "sharded_step",
    "accumulate_tokens",
    "best_plan",
    "predict_remat",
    "recompute",
    "reversible_backward",
    "segments",
    "twice",
    "needed",
    "no_flush",
    "predict_pipedream",
    "run_pipedream",
    "staleness",
    "store",
    "two_versions",
    "clip",
    "owners",
    "predict_zero",
    "sharded",
    "sharded_linear",
    "to_owners",
    "clip_copies",
    "lamb_step",
    "lars_step",
    "learning_rate",
    "noise_scale",
    "predict_large_batches",
    "asynchronous",
    "bounded",
    "leavers",
    "pieces",
    "predict_server",
    "synchronous",
    "compress",
    "local_sgd",
    "next_period",
    "predict_talk_less",
    "sign_average",
    "sparse_mean",
    "best_grid",
    "clip_grid",
    "groups",
    "predict_hybrid",
    "step_bytes",
    "synchronize",
    "load_box",
    "newest",
    "predict_survive",
    "save_every",
    "save_parts",
    "ddp_ring",
    "gather_single",
    "later",
    "mean_hook",
    "predict_capstone",
    "reduce_single",
    "attention",
    "bias_gelu",
    "flatten",
    "fused",
    "normalizer",
    "predict_operators",
    "roofline",
]

prepare()
