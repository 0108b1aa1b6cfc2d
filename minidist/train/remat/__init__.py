"""Less memory for more compute: what backward needs is computed again instead of kept.

checkpoint, checkpoint_reentrant             one function: only its inputs are kept
checkpoint_sequential, checkpoint_recursive  a chain of layers: about √L segments, by a plan, or by halves
plan, smallest                               the least compute within a budget; the least memory
selective, ATTENTION                         what the operators of a list make is computed again
ReversibleBlock, ReversibleSequence          nothing is kept: inputs are reconstructed from outputs
"""

from .checkpoint import checkpoint
from .plan import Plan, Segment, plan, smallest
from .reentrant import checkpoint_reentrant
from .reversible import ReversibleBlock, ReversibleSequence
from .selective import ATTENTION, selective
from .sequential import checkpoint_recursive, checkpoint_sequential

__all__ = [
    "ATTENTION",
    "Plan",
    "ReversibleBlock",
    "ReversibleSequence",
    "Segment",
    "checkpoint",
    "checkpoint_recursive",
    "checkpoint_reentrant",
    "checkpoint_sequential",
    "plan",
    "selective",
    "smallest",
]
