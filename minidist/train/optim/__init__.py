"""Optimizers for large batches, their schedules, clipping over a grid of ranks, and how large a batch is worth it.

SGD, LARS, AdamW, LAMB                      two steps, each with and without a trust ratio; also of sharded layers
groups, bias_or_norm                        what is stepped plainly, and what is cut over ranks
warm_up, cosine, polynomial, inverse_root   functions from a step to a factor, for torch's LambdaLR
warm_up_steps, warm_up_share, scaled        the warm-up, and the rate, of another training or batch
batch_ramp, batches, ramp_steps             a batch that grows with the tokens seen
clip_grad_norm_, counted                    by the norm of all gradients, each counted once
NoiseScale, noise_terms, square_of          the critical batch size, from gradients of two sizes of batch
steps_ratio, samples_ratio, best_rate       what follows from it
"""

from ..accumulate import scaled
from .adamw import LAMB, AdamW
from .clip import clip_grad_norm_, counted
from .groups import bias_or_norm, groups
from .noise import NoiseScale, Terms, best_rate, noise_terms, samples_ratio, square_of, steps_ratio
from .ramp import batch_ramp, batches, ramp_steps
from .schedules import (
    constant,
    cosine,
    inverse_root,
    polynomial,
    warm_up,
    warm_up_share,
    warm_up_steps,
)
from .sgd import LARS, SGD

__all__ = [
    "LAMB",
    "LARS",
    "SGD",
    "AdamW",
    "NoiseScale",
    "Terms",
    "batch_ramp",
    "batches",
    "best_rate",
    "bias_or_norm",
    "clip_grad_norm_",
    "constant",
    "cosine",
    "counted",
    "groups",
    "inverse_root",
    "noise_terms",
    "polynomial",
    "ramp_steps",
    "samples_ratio",
    "scaled",
    "square_of",
    "steps_ratio",
    "warm_up",
    "warm_up_share",
    "warm_up_steps",
]
