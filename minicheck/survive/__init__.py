"""The exercises of lesson 18, Survive and plan: how often to save, a save that a power cut cannot spoil, what is found
again, a part of a tensor out of other parts, and the numbers of a real run."""

from .boxes import load_box
from .every import save_every
from .found import newest
from .numbers import predict_survive
from .parts import save_parts

__all__ = ["load_box", "newest", "predict_survive", "save_every", "save_parts"]
