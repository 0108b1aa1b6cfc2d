"""What the exercises of lesson 10 share: what the meter of a World says of this rank's memory, and bytes sent."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from minidist.comm.charge.charge import charges

from ..exam import Outcome
from ..wrong import Wrong

FORBIDDEN = ("minidist.parallel", "minidist.train", "minidist.study", "minicheck.zero.oracle")
STEPS = 3


class Adam:
    """The optimizer that answers are given. (torch's own takes seconds to import its compiler, in every process.)"""

    def __init__(self, params: Iterable[Tensor], rate: float = 0.05):
        self.params = list(params)
        self.rate = rate
        self.steps = 0
        if not self.params:
            raise ValueError("optimizer got an empty parameter list")
        self.state: dict[Tensor, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        for p in self.params:
            if p.grad is not None:
                mean, square = self.state.setdefault(p, (torch.zeros_like(p), torch.zeros_like(p)))
                mean.lerp_(p.grad, 0.1)
                square.lerp_(p.grad.square(), 0.001)
                wide = (square / (1 - 0.999**self.steps)).sqrt_().add_(1e-8)
                p.sub_(self.rate / (1 - 0.9**self.steps) * mean / wide)

    def zero_grad(self) -> None:
        for p in self.params:
            p.grad = None

    @property
    def nbytes(self) -> int:
        """Of its states."""
        return sum(x.nbytes for two in self.state.values() for x in two)


def now() -> dict[str, int]:
    """Live bytes by category on this rank; {} in a real process, which has no meter."""
    found = charges()
    return found[0].ledger.timeline("cpu").at(math.inf) if found else {}


def most(kind: str | None = None, since: int = 0) -> int:
    """The most bytes that were live at once, of one category or of all, after so many changes."""
    found = charges()
    if not found:
        return 0
    line = found[0].ledger.timeline("cpu")
    return int((line.total if kind is None else line.live[kind])[since:].max(initial=0))


def changes() -> int:
    """How many changes the meter has seen on this rank."""
    found = charges()
    return len(found[0].ledger.timeline("cpu")) if found else 0


def sent_at_most(outcome: Outcome, psi: float, what: str, hint: str) -> None:
    """Raise Wrong if all ranks together send more than `psi` bytes, but for what rounds up."""
    sent = outcome.nbytes()
    if sent > psi * 1.02 + 64:
        raise Wrong(
            f"the numbers are right, but all ranks together send {sent:,} bytes, and {what} = {round(psi):,} "
            f"are enough. {hint}"
        )


def sent_at_least(outcome: Outcome, psi: float, what: str) -> None:
    """Raise Wrong if less is sent than must be."""
    sent = outcome.nbytes()
    if sent < 0.98 * psi - 64:
        raise Wrong(
            f"the numbers are right, but all ranks together send {sent:,} bytes, and {what} = {round(psi):,} "
            "are the least: do numbers go another way than through messages?"
        )
