"""ZeRO: what data parallelism keeps n times, kept once.

    ShardedOptimizer    stages 1 and 2: optimizer states, and gradients, at the owner of a parameter
    step_bytes          what they send
    FullySharded        stage 3: parameters too, gathered block by block, just in time
    OffloadedOptimizer  any optimizer's states and step on the host, exact or one update behind
"""

from .cost import step_bytes
from .fully import FullySharded
from .offload import OffloadedOptimizer
from .optimizer import ShardedOptimizer

__all__ = ["FullySharded", "OffloadedOptimizer", "ShardedOptimizer", "step_bytes"]
