"""What becomes of momentum at an average: parameters are one again, and each rank's optimizer remembers its own way.

    "keep"      nothing: every rank's momentum goes on from its own gradients                      0 bytes
    "reset"     states become what they were when the optimizer was wrapped: for most, none at all  0 bytes
    "average"   states in the shape of their parameter are averaged with it                        N bytes a state

A kept momentum still points where its rank was; a reset one loses what all have learned; an averaged one doubles the
message (with Adam's two states triples it). Counts (`step`), numbers, and states of another shape stay each rank's own
when the rest is averaged. Source: Wang et al. 2020, "SlowMo", section 2 and appendix B.1 (maintain, reset, average).
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from torch.optim import Optimizer

STATES = ("keep", "reset", "average")


def averaged(optimizer: Optimizer, params: list[Tensor]) -> list[Tensor]:
    """The states of `params` that are averaged, in the order of parameters and of names.

    Every rank must have the same: each has stepped the same parameters.
    """
    return [
        x
        for p in params
        for name, x in sorted(optimizer.state.get(p, {}).items())
        if name != "step" and isinstance(x, Tensor) and x.shape == p.shape and x.is_floating_point()
    ]


class Fresh:
    """The states of an optimizer as they are now, to go back to."""

    def __init__(self, optimizer: Optimizer):
        with torch.no_grad():
            self._first = {p: _cloned(state) for p, state in optimizer.state.items()}

    @torch.no_grad()
    def restore(self, optimizer: Optimizer) -> None:
        for state in optimizer.state.values():
            for x in state.values():
                if isinstance(x, Tensor):
                    x.zero_()  # it may be a view of memory that the optimizer will use again
        optimizer.state.clear()
        for p, state in self._first.items():
            optimizer.state[p].update(_cloned(state))


def _cloned(state: dict) -> dict:
    return {
        name: x.detach().clone() if isinstance(x, Tensor) else copy.deepcopy(x)
        for name, x in state.items()
    }
