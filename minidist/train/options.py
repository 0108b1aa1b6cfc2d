"""Options of optimizers, checked: those that cannot be, and those of torch.optim's classes that are not done here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNKNOWN = ("amsgrad", "maximize", "differentiable")
"""A state dict of torch.optim's classes may ask for them."""


def refuse(group: Mapping[str, Any], why: str) -> None:
    """ValueError, which says `why`, for an option that is not done here."""
    for option in UNKNOWN:
        if group.get(option):
            raise ValueError(f"{option}=True is not done {why}: take torch.optim's class")


def not_negative(**values: float) -> None:
    """ValueError that names the first of these that is below zero."""
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{name} is not negative: it is {value}")


def fractions(betas: tuple[float, float]) -> None:
    """ValueError unless moving averages with these betas exist."""
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas are at least 0 and below 1, not {betas}")


def nesterov_has(momentum: float, dampening: float) -> None:
    """ValueError unless Nesterov's momentum is there, and undamped."""
    if not momentum > 0 or dampening:
        raise ValueError(
            f"Nesterov's momentum has no dampening: momentum {momentum}, dampening {dampening}"
        )
