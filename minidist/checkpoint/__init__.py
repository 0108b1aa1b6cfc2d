"""Checkpoints: saved from all ranks, whole or not at all, and read on any grid.

Checkpoints             save (also beside the program), latest, keep the last k
pieces, load            a model and its optimizer, however they are split
Saved                   one checkpoint: read pieces of it, or export it to one file
Piece, piece, Fused     what a rank has of a whole tensor, where the modules do not say it themselves
random_state, set_random_state
Refused, SaveError      damaged or foreign; could not be written
"""

from .checkpoints import Checkpoints, SaveError
from .manifest import Refused
from .piece import Piece, piece
from .places import Fused
from .random import random_state, set_random_state
from .saved import Saved
from .training import load, pieces

__all__ = [
    "Checkpoints",
    "Fused",
    "Piece",
    "Refused",
    "SaveError",
    "Saved",
    "load",
    "piece",
    "pieces",
    "random_state",
    "set_random_state",
]
