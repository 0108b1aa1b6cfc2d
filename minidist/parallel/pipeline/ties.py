"""One parameter on several stages: a GPT's token embedding is on the first, and again the projection on the last.

Each stage that holds it has a copy, and a part of the gradient. The copies start equal, and after the last backward
of a step the parts are summed over the stages that hold it, so that every optimizer takes the same step: one
all-reduce of the parameter's N bytes, 2(n−1)/n·Nβ between n stages. Source: Narayanan et al. 2021, "Efficient
Large-Scale Language Model Training on GPU Clusters", Megatron-LM's embedding group.

Invariant: what a gradient held before the step is not summed again.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...collectives import all_reduce_, broadcast_
from ...comm.base import Comm, describe


def looks(tied: Mapping[str, Tensor]) -> dict[str, str]:
    """What other ranks must know of tied parameters."""
    return {name: describe(p) for name, p in tied.items()}


class Ties:
    """The tied parameters of this rank; `everyone`: every rank's `looks`. Makes them equal to the first holder's.

    Raises ValueError where a parameter has another shape or dtype on another rank.
    """

    def __init__(self, comm: Comm, tied: Mapping[str, Tensor], everyone: list[dict[str, str]]):
        self._groups, self._before = [], []
        for name in sorted({name for names in everyone for name in names}):
            holders = [rank for rank, names in enumerate(everyone) if name in names]
            for rank in holders:
                if everyone[rank][name] != everyone[holders[0]][name]:
                    raise ValueError(
                        f"{name} is tied, but {everyone[holders[0]][name]} on rank {holders[0]}"
                        f" and {everyone[rank][name]} on rank {rank}"
                    )
            group = comm.split([0 if rank in holders else None for rank in range(comm.size)])
            if group is not None:
                self._groups.append((tied[name], group))
                broadcast_(group, tied[name].detach())

    @property
    def repeated(self) -> list[Tensor]:
        """Those of this rank that an earlier stage holds, too: who sums over all stages leaves them out."""
        return [p for p, group in self._groups if group.rank]

    def begin(self) -> None:
        """Put aside what gradients hold from earlier steps."""
        self._before = [p.grad for p, _ in self._groups]
        for p, _ in self._groups:
            p.grad = None

    def end(self) -> None:
        """Sum the gradients of this step; a missing one counts as zeros. A frozen parameter has none."""
        for (p, group), before in zip(self._groups, self._before, strict=True):
            if p.requires_grad:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                all_reduce_(group, p.grad)
            if before is not None:
                p.grad = before if p.grad is None else before.add_(p.grad)
