"""The frame of an optimizer whose step of a layer has a length of its own.

    for every parameter     advance: moments, from the gradient
    for all together        norms of weights and updates, over the ranks that share a parameter (see norms.py)
    for every parameter     apply: its step, times its trust ratio

A group with trust=0 has no ratio: its parameters are stepped as by the plain optimizer, SGD or AdamW, and its norms
are neither computed nor sent. Between the first loop and the last nothing is kept but two numbers a parameter, so an
update that the norm needs is formed twice, and Ψ more elements of memory are not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ...comm.base import Comm
from ..options import refuse
from .norms import squares, summed_

NONE: Mapping = MappingProxyType({})


class Layerwise(torch.optim.Optimizer):
    """What SGD, LARS, AdamW and LAMB have in common.

    across: {way: Comm} of the ranks that share parameters; a group's option `split` names the ways in which its own
    are cut, () for none. All ranks of a Comm have the same groups, and step together.
    ratios: {parameter: trust ratio of the last step, a 0-d tensor}, to be looked at; plain parameters are not in it.
    """

    across = ratios = NONE

    def __init__(self, params, defaults: dict[str, Any], across: Mapping[str, Comm] | None):
        super().__init__(params, defaults)
        if across:
            self.across = dict(across)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Also torch.optim's: options that a group there lacks, as it knows of no trust, stay as they are here, and so
        does `split`, which belongs to this run."""
        saved = state_dict["param_groups"]
        if len(saved) == len(self.param_groups):  # else torch says what is wrong
            ours = [
                {key: value for key, value in group.items() if key not in ("params", "param_names")}
                for group in self.param_groups
            ]
            saved = [
                own | group | {"split": own["split"]}
                for own, group in zip(ours, saved, strict=True)
            ]
        super().load_state_dict(state_dict | {"param_groups": saved})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None):
        """One step of every parameter that has a gradient. Returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        every = [(group, p) for group in self.param_groups for p in group["params"]]
        for group in self.param_groups:
            refuse(group, "here")
        for group, p in every:
            if p.grad is not None:
                if p.grad.layout is not torch.strided:
                    raise ValueError(
                        f"the gradient of {tuple(p.shape)} is {p.grad.layout}: steps are of dense ones"
                    )
                self._advance(group, p)
        self.ratios = self._ratios([(group, p) for group, p in every if group["trust"]])
        for group, p in every:
            if p.grad is not None:
                self._apply(group, p, self.ratios.get(p))
        return loss

    def _ratios(self, trusted: list[tuple[dict, Tensor]]) -> dict[Tensor, Tensor]:
        """Also of parameters that have no gradient here: other ranks may have one for their parts."""
        if not trusted:
            return {}
        # (P, 2)
        rows = torch.stack([squares([p, self._measured(group, p)]) for group, p in trusted])
        norms = summed_(rows, [group["split"] for group, _ in trusted], self.across).sqrt()
        return {p: self._ratio(group, *row) for (group, p), row in zip(trusted, norms, strict=True)}

    def _advance(self, group: dict[str, Any], p: Tensor) -> None:
        """Take the gradient of `p` into its states."""

    def _measured(self, group: dict[str, Any], p: Tensor) -> Tensor | None:
        """What the ratio compares the weights with; None where there is no gradient."""
        raise NotImplementedError

    def _ratio(self, group: dict[str, Any], weights: Tensor, other: Tensor) -> Tensor:
        """The trust ratio, from two norms, 0-d tensors."""
        raise NotImplementedError

    def _apply(self, group: dict[str, Any], p: Tensor, ratio: Tensor | None) -> None:
        """Step `p`."""
        raise NotImplementedError
