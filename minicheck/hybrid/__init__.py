"""The exercises of lesson 15, Hybrid: groups of a grid, bytes by axis, gradients and their norm, the best grid."""

from .choose import best_grid
from .clip import clip_grid
from .numbers import predict_hybrid
from .places import groups
from .sync import synchronize
from .traffic import step_bytes

__all__ = ["best_grid", "clip_grid", "groups", "predict_hybrid", "step_bytes", "synchronize"]
