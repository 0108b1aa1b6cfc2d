"""Slow momentum: the way from one average to the next is a step, too, and gets a momentum of its own.

Averaging every H steps is as if all ranks together took one large step, from x to the average x̄. SlowMo takes it for
a gradient: divided by the learning rate γ, which makes it independent of the rate, it moves a slow momentum u:

    u ← βu + (x − x̄)/γ          x ← x − αγu

With β = 0 and α = 1 that is x̄, plain Local SGD. γ is the rate of the parameter's group at the average; where it is 0,
nobody has moved by a gradient: u decays, x becomes x̄. All ranks compute it alike, without a message.

Memory: x and u, 2Ψ numbers on each rank. Source: Wang et al. 2020, "SlowMo: Improving Communication-Efficient
Distributed SGD with Slow Momentum", algorithm 1.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer


class SlowMomentum:
    """Steps from the last average. momentum: β, 0 to below 1.  rate: α above 0. ValueError for others."""

    def __init__(self, momentum: float, rate: float):
        if not (0 <= momentum < 1 and rate > 0):
            raise ValueError(
                f"a slow momentum is from 0 to below 1 and its rate above 0, not {momentum} and {rate}"
            )
        self.momentum, self.rate = momentum, rate
        self.anchors: dict[Tensor, Tensor] = {}  # the parameters after the last average
        self.buffers: dict[Tensor, Tensor] = {}

    @property
    def on(self) -> bool:
        return self.momentum > 0 or self.rate != 1

    @torch.no_grad()
    def start(self, params: list[Tensor]) -> None:
        """A period begins: remember where. Parameters that are known are at their anchors already."""
        for p in params if self.on else ():
            if p not in self.anchors:
                self.anchors[p], self.buffers[p] = p.detach().clone(), torch.zeros_like(p)

    @torch.no_grad()
    def step(self, optimizer: Optimizer, params: list[Tensor]) -> None:
        """Move `params`, which are averages now, on from their anchors."""
        if not self.on:
            return
        rates = {p: float(group["lr"]) for group in optimizer.param_groups for p in group["params"]}
        for p in params:
            rate = rates[p]
            x = self.anchors[p]
            u = self.buffers[p]
            u.mul_(self.momentum)
            if rate:
                u.add_(x - p, alpha=1 / rate)
                p.copy_(x.add_(u, alpha=-self.rate * rate))
            else:
                x.copy_(p)

    def state(self, params: list[Tensor]) -> dict[str, dict[int, Tensor]]:
        """Anchors and momenta by the number of the parameter."""
        kept = {"anchors": self.anchors, "momenta": self.buffers}
        return {
            name: {i: of[p] for i, p in enumerate(params) if p in of} for name, of in kept.items()
        }

    @torch.no_grad()
    def load(self, state: dict[str, dict[int, Tensor]], params: list[Tensor]) -> None:
        self.anchors, self.buffers = (
            {params[i]: x.detach().clone().to(params[i]) for i, x in state[name].items()}
            for name in ("anchors", "momenta")
        )
