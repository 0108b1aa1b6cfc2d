"""What one rank does for itself beyond the plain step.

autocast, Masters, LossScaler, prepare    mixed precision: lists of operators, fp32 copies, a scaled loss, O0 to O3 (amp)
eight_bits_           products of linear layers in E4M3 and E5M2, with scales by tensor, row or block (fp8)
checkpoint, checkpoint_sequential    activations computed again instead of kept (remat)
selective             only those of listed operators computed again (selective)
ReversibleSequence    blocks whose inputs follow from their outputs (reversible)
SGD, AdamW, LARS, LAMB    optimizers, also of shards, the last two with a trust ratio by layer (optim)
groups                parameters without weight decay and trust ratio, and those that are cut (optim)
NoiseScale            how large a batch is worth it (optim)
warm_up, cosine, batch_ramp, scaled    rates and batches that change with the steps (schedule)
clip_grad_norm_       clipping by the norm of all gradients, each counted once (norm)

Fused operators are in `fuse`, AdamW over one flat buffer in `flat_optim`.
"""

from .amp import LossScaler, Masters, autocast, prepare
from .fp8 import eight_bits_
from .norm import clip_grad_norm_
from .optim import LAMB, LARS, SGD, AdamW, NoiseScale, groups
from .remat import checkpoint, checkpoint_sequential
from .reversible import ReversibleSequence
from .schedule import batch_ramp, cosine, scaled, warm_up
from .selective import selective

__all__ = [
    "LAMB",
    "LARS",
    "SGD",
    "AdamW",
    "LossScaler",
    "Masters",
    "NoiseScale",
    "ReversibleSequence",
    "autocast",
    "batch_ramp",
    "checkpoint",
    "checkpoint_sequential",
    "clip_grad_norm_",
    "cosine",
    "eight_bits_",
    "groups",
    "prepare",
    "scaled",
    "selective",
    "warm_up",
]
