"""SGD and AdamW over one flat buffer: drop-ins for torch.optim's. See `flat` for the buffers, `steps` for the sums."""

from __future__ import annotations

from torch import Tensor

from .flat import FlatOptimizer
from .steps import adamw_, momentum_, sgd_

UNKNOWN = ("amsgrad", "maximize", "differentiable")
"""Options of torch.optim's classes that are not done here; a state dict may ask for them."""


def _refuse(group: dict) -> None:
    for option in UNKNOWN:
        if group.get(option):
            raise ValueError(f"{option}=True is not done over a flat buffer: take torch.optim's class")


def _not_negative(**values: float) -> None:
    for name, value in values.items():
        if value < 0:
            raise ValueError(f"{name} is not negative: it is {value}")


class FlatSGD(FlatOptimizer):
    """`torch.optim.SGD`, with its arguments and states: 1 launch a group, 3N elements, 5N with momentum.

    Raises ValueError for negative values, and for Nesterov without momentum or with dampening.
    """

    def __init__(self, params, lr: float = 1e-3, momentum: float = 0.0, dampening: float = 0.0,
                 weight_decay: float = 0.0, nesterov: bool = False):  # fmt: skip
        _not_negative(lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum <= 0 or dampening):
            raise ValueError(f"Nesterov's momentum has no dampening: momentum {momentum}, dampening {dampening}")
        super().__init__(params, dict(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay,
                                      nesterov=nesterov))  # fmt: skip

    def _names(self, group: dict) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def _kind(self, state: dict) -> bool:
        return state.get("momentum_buffer") is not None

    def _step_run(self, group: dict, moves: bool, p: Tensor, states: list[Tensor], g: Tensor, params: list) -> None:
        _refuse(group)
        lr, decay, momentum = float(group["lr"]), float(group["weight_decay"]), float(group["momentum"])
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

    def __init__(self, params, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 1e-2):  # fmt: skip
        _not_negative(lr=lr, eps=eps, weight_decay=weight_decay)
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas are at least 0 and below 1, not {betas}")
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    def _kind(self, state: dict) -> int:
        return int(state.get("step", 0))

    def _step_run(self, group: dict, done: int, p: Tensor, states: list[Tensor], g: Tensor, params: list) -> None:
        _refuse(group)
        beta1, beta2 = group["betas"]
        for param in params:
            self.state[param]["step"] = done + 1
        adamw_(p, *states, g, float(group["lr"]), beta1, beta2, group["eps"], float(group["weight_decay"]), done + 1)
