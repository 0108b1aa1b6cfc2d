"""PipeDream: asynchronous pipelines, whose stages update without waiting for each other.

PipeDream      one update a micro-batch; weight stashing, vertical sync
PipeDream2BW   one update for m micro-batches, two versions of the weights
formulas       most_versions, most_stale, version_bytes
"""

from .engine import PipeDream, PipeDream2BW
from .formulas import most_stale, most_versions, version_bytes
from .versions import Versions

__all__ = ["PipeDream", "PipeDream2BW", "Versions", "most_stale", "most_versions", "version_bytes"]
