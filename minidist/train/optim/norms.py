"""The norms that a trust ratio needs, of layers as they are, also where each rank has only a part of them.

A norm does not add up; its square does. So ranks that hold parts of a parameter sum squares, two of each parameter, of
its weights and of its update, all in one message:

    one rank, or whole parameters by owner (ZeRO 1, 2)     nothing to sum
    flat shards that cut through parameters (ZeRO 3)       an all-reduce over the data ranks, 16 bytes a parameter
    rows or columns of matrices (tensor parallel)          over the tensor ranks, 16 bytes a parameter that is cut
    both                                                   both, one after the other

Invariant: a parameter that is whole on every rank is summed nowhere; all ranks find the same norms, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...collectives import all_reduce_
from ...comm.base import Comm
from ...parallel.zero.norm import own_norm


def squares(some: Sequence[Tensor | None]) -> Tensor:
    """Sums of squares of what this rank has of some tensors, (k,) float64. None counts as zeros."""
    like = next(x for x in some if x is not None)
    nothing = torch.zeros((), dtype=torch.float64, device=like.device)
    return torch.stack(
        [nothing if x is None else own_norm(x).to(torch.float64).square() for x in some]
    )


def summed_(rows: Tensor, split: Sequence[Sequence[str]], across: Mapping[str, Comm]) -> Tensor:
    """`rows` (P, 2), one of each parameter, summed in place over the ranks that hold its parts. Returns `rows`.

    split: for each parameter the names of the ways in which it is cut, the same on all ranks.  across: the ranks of
    each way.  One all-reduce for each way that cuts any.  Raises ValueError for a way whose ranks are not given.
    """
    ways = list(dict.fromkeys(way for names in split for way in names))
    for way in ways:
        if way not in across:
            raise ValueError(
                f"a parameter is split over {way!r}, but across={{…}} names the ranks of {sorted(across)}"
            )
    for way, comm in across.items():
        cut = [i for i, names in enumerate(split) if way in names]
        if cut:
            rows[cut] = all_reduce_(comm, rows[cut].to(comm.device)).to(rows.device)
    return rows
