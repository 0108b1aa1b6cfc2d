"""The collectives, built from nothing but send and receive, and what they cost."""

from .hierarchical import Hierarchical
from .verbs import (
    all_gather,
    all_gather_,
    all_gather_json,
    all_reduce_,
    all_to_all,
    bandwidth,
    barrier,
    broadcast_,
    fastest,
    gather,
    predict,
    reduce_,
    reduce_scatter,
    reduce_scatter_,
    scatter,
    seconds,
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
    "all_gather_json",
    "bandwidth",
    "fastest",
    "predict",
    "reduce_scatter_",
    "seconds",
]
