"""Checkpoints: saved from all ranks, whole or not at all, and read on any grid.

files         the format: atomic writes, safetensors, the manifest with its sizes and checksums
reshard       boxes: what of a saved tensor goes where on another grid
checkpoint    Checkpoints: save (also beside the program), latest, keep the last k; pieces and load: a model and its
              optimizer, however they are split; the state of random generators
huggingface   weights in Hugging Face's layout, read on any grid and written from any: Pretrained, write
"""

from .checkpoint import Checkpoints, SaveError, load, pieces, random_state, set_random_state
from .files import Refused
from .reshard import Piece, Saved

__all__ = [
    "Checkpoints",
    "Piece",
    "Refused",
    "SaveError",
    "Saved",
    "load",
    "pieces",
    "random_state",
    "set_random_state",
]
