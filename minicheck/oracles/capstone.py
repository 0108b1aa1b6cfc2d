"""What all ranks' tensors are together, by a loop on one rank: the exercises of lesson 28 are compared with it.

Emptied in the process of an answer: no way to ask.
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

COMBINE = {"sum": torch.add, "min": torch.minimum, "max": torch.maximum, "prod": torch.mul}


def combined(xs: list[Tensor], op: str) -> Tensor:
    """All ranks' tensors; "mean" is the sum divided by their number."""
    return reduce(torch.add, xs) / len(xs) if op == "mean" else reduce(COMBINE[op], xs)
