"""The collectives, built from nothing but send and receive, and what they cost."""

from .cost import bandwidth, fastest, predict, seconds
from .hierarchical import Hierarchical
from .verbs import all_gather, all_reduce_, all_to_all, barrier, broadcast_, gather, reduce_, reduce_scatter, scatter

VERBS = ("all_gather", "all_reduce_", "all_to_all", "barrier", "broadcast_", "gather", "reduce_", "reduce_scatter",
         "scatter")  # fmt: skip

__all__ = [*VERBS, "Hierarchical", "bandwidth", "fastest", "predict", "seconds"]
