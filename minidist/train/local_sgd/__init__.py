"""Local SGD: take steps alone, and average the parameters now and then.

LocalSGD              any optimizer, with an average every H steps; post-local with `start`
AdaComm               H from the loss: long periods first, short ones as the loss falls
average_parameters    the naive average, one all-reduce for each parameter
average_bytes, run_bytes, run_seconds    what it sends and how long it takes, as formulas
"""

from .adaptive import AdaComm
from .averages import average_parameters
from .cost import average_bytes, run_bytes, run_seconds
from .optimizer import LocalSGD

__all__ = ["AdaComm", "LocalSGD", "average_bytes", "average_parameters", "run_bytes", "run_seconds"]
