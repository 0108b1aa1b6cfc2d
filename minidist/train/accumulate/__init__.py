"""Gradient accumulation, and what else changes with it.

accumulate, accumulate_naive          a batch in micro-batches, weighted by what counts in them, or all alike
scaled                                the learning rate for a batch k times as large
momentum_for, adjust_momentum_        batch norm's running averages with k updates a step
batch_norm_gap                        how far k micro-batches are from their batch, measured
"""

from .micro import accumulate, accumulate_naive
from .norm import Gap, adjust_momentum_, batch_norm_gap, momentum_for
from .scaling import Scaled, scaled

__all__ = [
    "Gap",
    "Scaled",
    "accumulate",
    "accumulate_naive",
    "adjust_momentum_",
    "batch_norm_gap",
    "momentum_for",
    "scaled",
]
