"""Tensor parallelism: the matrices of a layer are split over the ranks, and with them its heads and features.

copy_to, reduce_from, scatter_to, gather_from         between whole and split data; each with its conjugate
gather_sequence, reduce_scatter_sequence              the same where the sequence is split
ColumnLinear, RowLinear                               a linear layer by its outputs, by its inputs
TensorMLP, TensorAttention, TensorLayer               the parts of models.gpt; RowFirstMLP for comparison
shard, unshard, cuts, Cut, parameter                  weights taken apart, and put together
seed_group_, split_random, TensorDropout, SequenceNorm
block_bytes, row_first_bytes, layer_bytes             what they send, as formulas
"""

from .around import SequenceNorm, TensorDropout
from .cost import Traffic, block_bytes, layer_bytes, row_first_bytes
from .layer import RowFirstMLP, TensorAttention, TensorLayer, TensorMLP
from .linear import ColumnLinear, RowLinear
from .operators import (
    copy_to,
    gather_from,
    gather_sequence,
    reduce_from,
    reduce_scatter_sequence,
    scatter_to,
)
from .parts import Cut, cuts, parameter, shard, unshard
from .random import seed_group_, split_random

__all__ = [
    "ColumnLinear",
    "Cut",
    "RowFirstMLP",
    "RowLinear",
    "SequenceNorm",
    "TensorAttention",
    "TensorDropout",
    "TensorLayer",
    "TensorMLP",
    "Traffic",
    "block_bytes",
    "copy_to",
    "cuts",
    "gather_from",
    "gather_sequence",
    "layer_bytes",
    "parameter",
    "reduce_from",
    "reduce_scatter_sequence",
    "row_first_bytes",
    "scatter_to",
    "seed_group_",
    "shard",
    "split_random",
    "unshard",
]
