"""ZeRO: what data parallelism keeps n times, kept once.

ShardedOptimizer    stages 1 and 2: optimizer states, and gradients, at the owner of a parameter
kept, step_bytes    what they keep and send, as formulas
FullySharded        stage 3: parameters too, gathered block by block, just in time
OffloadedOptimizer  any optimizer's states and step on the host, exact or one update behind
"""

from .cost import kept, step_bytes
from .fully import FullySharded
from .offload import OffloadedOptimizer
from .optimizer import ShardedOptimizer

__all__ = ["FullySharded", "OffloadedOptimizer", "ShardedOptimizer", "kept", "step_bytes"]
