"""AdaComm: how many steps to take alone, from the loss. Far from the minimum many; near it, few.

Long periods save messages, and leave an error that grows with them. At first the error does not matter; later it is
all that is left. So training is cut into intervals, and each begins with the loss F(x) there:

    τ_l = ⌈ √( F(x_l)/F(x_0) ) · τ_0 ⌉        if that is below τ_{l−1}, else ⌈ γ·τ_{l−1} ⌉

γ takes over where the loss stands still. With a learning rate that falls, √( (η_0/η_l)^k · F(x_l)/F(x_0) ): k = 3 is
what the bound on the error says, k = 1 what is stable; there τ may grow again when the rate has fallen. F is the mean
over the ranks of the loss of the first step after an average: of parameters that all ranks share. It is agreed by one
message of 16 bytes, so that all ranks choose the same τ. Source: Wang and Joshi 2019, "Adaptive Communication
Strategies to Achieve the Best Error-Runtime Trade-off in Local-Update SGD", section 4.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ...collectives import all_reduce_
from ...comm.base import Comm
from ..decide import decide


class Interval(NamedTuple):
    """step: of the run, at which it began.  loss: F there.  rate: η.  period: τ."""

    step: int
    loss: float
    rate: float
    period: int


class AdaComm:
    """H for a `LocalSGD`, which asks it at the first step after each average.

    tau_0: the first τ.  steps: of an interval at least, it ends with the average after them; or seconds, as in the
    paper, of the rank that has seen most of them (8 bytes an average).  gamma: γ.  rate_power: k, 0 for a fixed rate;
    the rate is that of the first group.  intervals: all until now, to look at. On meta tensors F stays F(x_0).
    Raises ValueError for values out of range, and unless one of steps and seconds is given.
    """

    def __init__(
        self,
        tau_0: int,
        steps: int | None = None,
        seconds: float | None = None,
        gamma: float = 0.5,
        rate_power: float = 0,
    ):
        if (steps is None) == (seconds is None):
            raise ValueError(
                f"an interval lasts steps or seconds, one of them: {steps} and {seconds} were given"
            )
        if tau_0 < 1 or not 0 < gamma < 1 or (steps or seconds) <= 0:
            raise ValueError(
                f"tau_0 is at least 1, gamma between 0 and 1 and an interval above 0, not {tau_0}, "
                f"{gamma} and {steps or seconds}"
            )
        self.tau_0 = tau_0
        self.steps = steps
        self.seconds = seconds
        self.gamma = gamma
        self.rate_power = rate_power
        self.intervals: list[Interval] = []
        self._began = 0.0  # of this interval, on this rank's clock
        self._over = True

    @property
    def period(self) -> int:
        """τ now."""
        return self.intervals[-1].period if self.intervals else self.tau_0

    def begin(
        self, comm: Comm, step: int, loss: Tensor | float | None, weight: float | None, rate: float
    ) -> None:
        """The first step after an average: the next interval, if the last one is over. loss: this rank's.

        weight: of this rank's loss, None where all weigh alike. ValueError without a loss, and for one that is
        negative or not finite on average (or 0, if it is the first).
        """
        if not self._over:
            return
        found = self._agreed(comm, loss, weight)
        first = self.intervals[0].loss if self.intervals else found
        if not (0 < first < math.inf and 0 <= found < math.inf):
            raise ValueError(
                f"AdaComm divides losses above 0, not {found} by the first one, {first}"
            )
        self.intervals.append(Interval(step, found, rate, self._choose(found / first, rate)))
        self._began, self._over = comm.now(), False

    def _agreed(self, comm: Comm, loss: Tensor | float | None, weight: float | None) -> float:
        """The mean loss of all ranks."""
        if loss is None:
            raise ValueError(
                f"rank {comm.rank} gave no loss, and H depends on it: step(loss=…), or a closure"
            )
        loss, weight = torch.as_tensor(loss).detach(), 1.0 if weight is None else float(weight)
        mine = torch.zeros(2, dtype=torch.float64, device=comm.device)
        if weight:  # the mean loss of no samples is nan
            mine = torch.stack([loss.to(mine) * weight, torch.full_like(mine[0], weight)])
        total, weights = all_reduce_(comm, mine).unbind()
        return decide(total / weights, on_meta=1.0)

    def _choose(self, ratio: float, rate: float) -> int:
        if not self.intervals:
            return self.tau_0
        before, first = self.intervals[-1], self.intervals[0]
        growth = (first.rate / rate) ** self.rate_power if self.rate_power else 1.0
        period = max(1, math.ceil(math.sqrt(growth * ratio) * self.tau_0))
        fallen = bool(self.rate_power) and rate < before.rate
        return (
            period
            if period < before.period or fallen
            else max(1, math.ceil(self.gamma * before.period))
        )

    def averaged(self, comm: Comm, step: int) -> None:
        """An average after so many steps of the run: is the interval over?"""
        if self.seconds is None:
            self._over = step - self.intervals[-1].step >= self.steps
        else:
            # a clock has values everywhere
            device = "cpu" if comm.device.type == "meta" else comm.device
            most = torch.tensor(comm.now() - self._began, dtype=torch.float64, device=device)
            self._over = decide(all_reduce_(comm, most, "max"), on_meta=False) >= self.seconds

    def state(self, now: float) -> dict:
        return {
            "intervals": [list(i) for i in self.intervals],
            "elapsed": now - self._began,
            "over": self._over,
        }

    def load(self, state: dict, now: float) -> None:
        self.intervals = [Interval(*i) for i in state["intervals"]]
        self._began, self._over = now - state["elapsed"], state["over"]
