"""The collectives, built from nothing but send and receive."""

from .verbs import all_gather, all_reduce_, all_to_all, barrier, broadcast_, gather, reduce_, reduce_scatter, scatter

__all__ = ["all_gather", "all_reduce_", "all_to_all", "barrier", "broadcast_", "gather", "reduce_", "reduce_scatter",
           "scatter"]  # fmt: skip
