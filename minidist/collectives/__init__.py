"""The collectives, built from nothing but send and receive, and what they cost.

What is named here takes tensors of any shape and checks its arguments. The algorithms that it calls, a file each, take
flat tensors and check nothing.

>>> import torch
>>> from minidist import World
>>> from minidist.collectives import all_gather, reduce_scatter
>>> def program(comm):
...     x = torch.tensor([1, 10]) * (comm.rank + 1)
...     part = reduce_scatter(comm, x)  # rank r's row of the sum
...     return part.tolist(), all_gather(comm, part).tolist()
>>> World(2).run(program)
[([3], [3, 30]), ([30], [3, 30])]
"""

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
