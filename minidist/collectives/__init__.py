"""The collectives, built from nothing but send and receive, and what they cost."""

from .cost import bandwidth, fastest, predict, seconds
from .hierarchical import Hierarchical
from .in_place import all_gather_, reduce_scatter_
from .verbs import (
    all_gather,
    all_reduce_,
    all_to_all,
    barrier,
    broadcast_,
    gather,
    reduce_,
    reduce_scatter,
    scatter,
)

VERBS = (
    "all_gather",
    "all_reduce_",
    "all_to_all",
    "barrier",
    "broadcast_",
    "gather",
    "reduce_",
    "reduce_scatter",
    "scatter",
)

__all__ = [
    *VERBS,
    "Hierarchical",
    "all_gather_",
    "bandwidth",
    "fastest",
    "predict",
    "reduce_scatter_",
    "seconds",
]
