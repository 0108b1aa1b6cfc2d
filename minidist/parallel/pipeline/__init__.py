"""A model in stages, each on a rank of its own: one executor runs every schedule.

Pipeline     this rank's stage, and its steps
forward      through all stages without a backward, to evaluate or to sample
partition    which layers each stage gets, from what they cost: by_count, by_parameters, by_time
"""

from .executor import Pipeline
from .forward import forward
from .partition import by_count, by_parameters, by_time, partition

__all__ = ["Pipeline", "by_count", "by_parameters", "by_time", "forward", "partition"]
