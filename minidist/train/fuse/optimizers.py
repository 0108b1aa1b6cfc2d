"""SGD and AdamW over one flat buffer: drop-ins for torch.optim's. See `flat` for the buffers, `steps` for the sums."""

from __future__ import annotations

from torch import Tensor

from ..optim import fractions, nesterov_has, not_negative, refuse
from .flat import FlatOptimizer
from .steps import adamw_, momentum_, sgd_

WHY = "over a flat buffer"


class FlatSGD(FlatOptimizer):
    """`torch.optim.SGD`, with its arguments and states: 1 launch a group, 3N elements, 5N with momentum.

    Raises ValueError for negative values, and for Nesterov without momentum or with dampening.
    """

    def __init__(
        self,
        params,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ):
        not_negative(lr=lr, momentum=momentum, weight_decay=weight_decay)
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
            ),
        )

    def _names(self, group: dict) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def _kind(self, state: dict) -> bool:
        return state.get("momentum_buffer") is not None

    def _step_run(
        self, group: dict, moves: bool, p: Tensor, states: list[Tensor], g: Tensor, params: list
    ) -> None:
        refuse(group, WHY)
        lr = float(group["lr"])
        decay = float(group["weight_decay"])
        momentum = float(group["momentum"])
        if not states:
            sgd_(p, g, lr, decay)
            return
        keep, gain = (momentum, 1 - float(group["dampening"])) if moves else (0.0, 1.0)
        own, push = (1.0, momentum) if group["nesterov"] else (0.0, 1.0)
        momentum_(p, *states, g, lr, decay, keep, gain, own, push)


class FlatAdamW(FlatOptimizer):
    """`torch.optim.AdamW`, with its arguments and states: 1 launch a group, 7N elements.

    A parameter's `step` is a number here and a tensor there; each loads the other's. Raises ValueError for
    negative values, and for betas outside 0 … 1.
    """

    names = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ):
        not_negative(lr=lr, eps=eps, weight_decay=weight_decay)
        fractions(betas)
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    def _kind(self, state: dict) -> int:
        return int(state.get("step", 0))

    def _step_run(
        self, group: dict, done: int, p: Tensor, states: list[Tensor], g: Tensor, params: list
    ) -> None:
        refuse(group, WHY)
        beta1, beta2 = group["betas"]
        for param in params:
            self.state[param]["step"] = done + 1
        adamw_(
            p,
            *states,
            g,
            float(group["lr"]),
            beta1,
            beta2,
            group["eps"],
            float(group["weight_decay"]),
            done + 1,
        )
