"""ZeRO stage 3: `FullySharded`."""

from .formulas import kept, peak, traffic
from .sharded import FullySharded

__all__ = ["FullySharded", "kept", "peak", "traffic"]
