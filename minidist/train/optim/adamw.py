"""AdamW, and LAMB: the same step, each layer's times a trust ratio.

    both     m = β₁m + (1 − β₁)g     v = β₂v + (1 − β₂)g²     m̂ = m/(1 − β₁ᵗ)     v̂ = v/(1 − β₂ᵗ)
             u = m̂/(√v̂ + ε) + λw
    AdamW    w −= η·u
    LAMB     w −= η·φ(‖w‖)/‖u‖·u            a layer's step is η times as long as its weights

Public LAMBs disagree. This one is the paper's algorithm 2: the moments are corrected for their start at zero, which
some leave out; φ(z) = z, which some clamp to 10, as `clamp=(0, 10)` does; and nothing is divided by the norm of all
gradients first, as in NVIDIA's. Where ‖u‖ or φ is 0, of which the paper does not speak, the ratio is 1.
Sources: You et al. 2020, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", algorithm 2;
Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...comm.base import Comm
from ..options import fractions, not_negative
from .layerwise import Layerwise


class LAMB(Layerwise):
    """Layer-wise adaptive moments for batches.

    trust: 1.0 as in the paper, times which each ratio goes. 0, for a group: it is stepped as by AdamW; so `groups` has
    it for biases and norms.  clamp: φ(z) = min(max(z, clamp[0]), clamp[1]); None: φ(z) = z.
    split, across: see `Layerwise`.  States are those of torch.optim.AdamW: `step`, `exp_avg`, `exp_avg_sq`; `step` is a
    number here and a tensor there, and each loads the other's.
    Raises ValueError for negative values, betas outside 0 … 1, and a clamp whose ends are in no order.
    """

    def __init__(
        self,
        params,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        trust: float = 1.0,
        clamp: tuple[float, float] | None = None,
        split: Sequence[str] = (),
        across: Mapping[str, Comm] | None = None,
    ):
        not_negative(lr=lr, eps=eps, weight_decay=weight_decay, trust=trust)
        fractions(betas)
        if clamp is not None and not 0 <= clamp[0] <= clamp[1]:
            raise ValueError(
                f"a norm is clamped between two numbers, 0 or more and in order, not {clamp}"
            )
        super().__init__(
            params,
            dict(
                lr=lr,
                betas=betas,
                eps=eps,
                weight_decay=weight_decay,
                trust=trust,
                clamp=clamp,
                split=tuple(split),
            ),
            across,
        )

    def _advance(self, group: dict[str, Any], p: Tensor) -> None:
        state, (beta1, beta2) = self.state[p], group["betas"]
        if not state:
            state |= {"step": 0, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        state["step"] = int(state["step"]) + 1
        state["exp_avg"].lerp_(p.grad, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)

    def _update(self, group: dict[str, Any], p: Tensor) -> Tensor:
        """u, from the states."""
        state, (beta1, beta2) = self.state[p], group["betas"]
        root = (state["exp_avg_sq"] / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
        return (
            (state["exp_avg"] / (1 - beta1 ** state["step"]))
            .div_(root)
            .add_(p, alpha=group["weight_decay"])
        )

    def _measured(self, group: dict[str, Any], p: Tensor) -> Tensor | None:
        return None if p.grad is None else self._update(group, p)

    def _ratio(self, group: dict[str, Any], weights: Tensor, update: Tensor) -> Tensor:
        length = weights if group["clamp"] is None else weights.clamp(*group["clamp"])
        return torch.where((length > 0) & (update > 0), group["trust"] * length / update, 1.0)

    def _apply(self, group: dict[str, Any], p: Tensor, ratio: Tensor | None) -> None:
        update = self._update(group, p)
        p.sub_(update if ratio is None else update.mul_(ratio), alpha=group["lr"])


class AdamW(LAMB):
    """Adam with decoupled weight decay: LAMB without a trust ratio. Steps and states as of `torch.optim.AdamW`."""

    def __init__(
        self,
        params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ):
        super().__init__(params, lr, betas, eps, weight_decay, 0.0)
