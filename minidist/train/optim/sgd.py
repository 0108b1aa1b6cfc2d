"""SGD with momentum, and LARS: the same step, each layer's times a trust ratio.

With a large batch and a large rate λ, ‖λg‖ is more than ‖w‖ in some layers, and little in others: one rate does not fit
all. LARS makes the length of each layer's step a fixed part of its weights' length, whatever the gradient's:

    SGD      d = g + βw                                v = m·v + d      w −= λ·v
    LARS     r = η‖w‖ / (‖g‖ + β‖w‖)   d = λ·r·(g + βw)   v = m·v + d      w −= v

The rate is within v in LARS, as its paper has it; both agree as long as it is constant. Where a norm is 0, r is 1.
Sources: You, Gitman and Ginsburg 2017, "Large Batch Training of Convolutional Networks", algorithm 1; Sutskever et al.
2013, "On the importance of initialization and momentum". The one rule for both is that of tinygrad's nn/optim.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...comm.base import Comm
from ..options import nesterov_has, not_negative
from .layerwise import Layerwise


class LARS(Layerwise):
    """Layer-wise adaptive rate scaling.

    trust: η, the part of a layer's weights that a step of rate 1 is long. 0, for a group: it is stepped as by SGD,
    with the rate outside of the momentum; so `groups` has it for biases and norms. A trusted layer sees the product
    η·lr alone, these see lr alone: take an lr that suits SGD, and η to fit, or give them an lr of their own.
    weight_decay: β, a part of the gradient, as for SGD.  nesterov: look ahead, w −= d + m·v.
    split, across: see `Layerwise`.  States are those of torch.optim.SGD: `momentum_buffer`.
    Raises ValueError for negative values, and for Nesterov without momentum.
    """

    def __init__(
        self,
        params,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 1e-3,
        nesterov: bool = False,
        dampening: float = 0.0,
        split: Sequence[str] = (),
        across: Mapping[str, Comm] | None = None,
    ):
        not_negative(lr=lr, momentum=momentum, weight_decay=weight_decay, trust=trust)
        if nesterov:
            nesterov_has(momentum, dampening)
        super().__init__(
            params,
            dict(
                lr=lr,
                momentum=momentum,
                dampening=dampening,
                weight_decay=weight_decay,
                nesterov=nesterov,
                trust=trust,
                split=tuple(split),
            ),
            across,
        )

    def _measured(self, group: dict[str, Any], p: Tensor) -> Tensor | None:
        return p.grad

    def _ratio(self, group: dict[str, Any], weights: Tensor, gradient: Tensor) -> Tensor:
        ratio = group["trust"] * weights / (gradient + group["weight_decay"] * weights)
        return torch.where((weights > 0) & (gradient > 0), ratio, 1.0)

    def _apply(self, group: dict[str, Any], p: Tensor, ratio: Tensor | None) -> None:
        lr = group["lr"]
        momentum = group["momentum"]
        state = self.state[p]
        d = p.grad.add(p, alpha=group["weight_decay"])
        if ratio is not None:
            d, lr = d.mul_(ratio * lr), 1.0
        if momentum:
            v = state.get("momentum_buffer")
            v = d.clone() if v is None else v.mul_(momentum).add_(d, alpha=1 - group["dampening"])
            state["momentum_buffer"] = v
            d = d.add_(v, alpha=momentum) if group["nesterov"] else v
        p.sub_(d, alpha=lr)


class SGD(LARS):
    """Stochastic gradient descent: LARS without a trust ratio. Arguments, steps and states as of `torch.optim.SGD`."""

    def __init__(
        self,
        params,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ):
        super().__init__(params, lr, momentum, weight_decay, 0.0, nesterov, dampening)
