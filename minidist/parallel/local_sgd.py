"""Local SGD: take steps alone, and average the parameters now and then.

LocalSGD              any optimizer, with an average every H steps; post-local with `start`
AdaComm               H from the loss: long periods first, short ones as the loss falls
average_parameters    the naive average, one all-reduce for each parameter
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..collectives import all_reduce_, broadcast_
from ..comm.base import Comm
from ..decide import decide
from .data import DataParallel
from .reducer import Claim, assign, same_group, share

# ------------------------------------------------------------
# The average of all ranks' parameters: what Local SGD sends instead of gradients.
#
#     rank 0   x ── step ── step ── step ── x0 ─┐                ┌─ x ── step …
#     rank 1   x ── step ── step ── step ── x1 ─┴─ (x0 + x1)/2 ──┴─ x ── step …
#
# Each rank scales what it has by its share, 1/n or its part of all samples, and an all-reduce adds: so no sum of n
# weights can overflow, and the result is the same on every rank bit for bit. Tensors of one dtype travel in flat buckets,
# one all-reduce each; nothing stays allocated between two averages but what is averaged.
#
# Cost of N bytes in b buckets, by rings: 2(n−1)·bα + 2(n−1)/n·Nβ. Source: McMahan et al. 2017, "Communication-Efficient
# Learning of Deep Networks from Decentralized Data", algorithm 1 (the weights); Stich 2019, section 2.


@torch.no_grad()
def average_parameters(comm: Comm, tensors: Iterable[Tensor], weight: float | None = None) -> None:
    """The naive average, in place: one all-reduce for each tensor. weight: see `share`."""
    part = share(comm, weight)
    for x in tensors:
        all_reduce_(comm, x.mul_(part))


@torch.no_grad()
def average_(
    comm: Comm,
    tensors: Sequence[Tensor],
    weight: float | None = None,
    bucket_bytes: int = 25 << 20,
    algorithm: str | None = None,
) -> None:
    """The same in buckets of at most `bucket_bytes`. ValueError for a size below 1."""
    sizes, kinds = [x.numel() * x.element_size() for x in tensors], [x.dtype for x in tensors]
    buckets, part = assign(sizes, kinds, bucket_bytes, bucket_bytes), share(comm, weight)
    for bucket in ([tensors[i] for i in positions] for positions in buckets):
        for x in bucket:
            x.mul_(part)
        all_reduce_(comm, bucket, algorithm=algorithm)


# ------------------------------------------------------------
# Slow momentum: the way from one average to the next is a step, too, and gets a momentum of its own.
#
# Averaging every H steps is as if all ranks together took one large step, from x to the average x̄. SlowMo takes it for
# a gradient: divided by the learning rate γ, which makes it independent of the rate, it moves a slow momentum u:
#
#     u ← βu + (x − x̄)/γ          x ← x − αγu
#
# With β = 0 and α = 1 that is x̄, plain Local SGD. γ is the rate of the parameter's group at the average; where it is 0,
# nobody has moved by a gradient: u decays, x becomes x̄. All ranks compute it alike, without a message.
#
# Memory: x and u, 2Ψ numbers on each rank. Source: Wang et al. 2020, "SlowMo: Improving Communication-Efficient
# Distributed SGD with Slow Momentum", algorithm 1.


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


# ------------------------------------------------------------
# What becomes of momentum at an average: parameters are one again, and each rank's optimizer remembers its own way.
#
#     "keep"      nothing: every rank's momentum goes on from its own gradients                      0 bytes
#     "reset"     states become what they were when the optimizer was wrapped: for most, none at all  0 bytes
#     "average"   states in the shape of their parameter are averaged with it                        N bytes a state
#
# A kept momentum still points where its rank was; a reset one loses what all have learned; an averaged one doubles the
# message (with Adam's two states triples it). Counts (`step`), numbers, and states of another shape stay each rank's own
# when the rest is averaged. Source: Wang et al. 2020, "SlowMo", section 2 and appendix B.1 (maintain, reset, average).


STATES = ("keep", "reset", "average")


def averaged(optimizer: Optimizer, params: list[Tensor]) -> list[Tensor]:
    """The states of `params` that are averaged, in the order of parameters and of names.

    Every rank must have the same: each has stepped the same parameters.
    """
    return [
        x
        for p in params
        for name, x in sorted(optimizer.state.get(p, {}).items())
        if name != "step" and isinstance(x, Tensor) and x.shape == p.shape and x.is_floating_point()
    ]


class Fresh:
    """The states of an optimizer as they are now, to go back to."""

    def __init__(self, optimizer: Optimizer):
        with torch.no_grad():
            self._first = {p: _cloned(state) for p, state in optimizer.state.items()}

    @torch.no_grad()
    def restore(self, optimizer: Optimizer) -> None:
        for state in optimizer.state.values():
            for x in state.values():
                if isinstance(x, Tensor):
                    x.zero_()  # it may be a view of memory that the optimizer will use again
        optimizer.state.clear()
        for p, state in self._first.items():
            optimizer.state[p].update(_cloned(state))


def _cloned(state: dict) -> dict:
    return {
        name: x.detach().clone() if isinstance(x, Tensor) else copy.deepcopy(x)
        for name, x in state.items()
    }


# ------------------------------------------------------------
# AdaComm: how many steps to take alone, from the loss. Far from the minimum many; near it, few.
#
# Long periods save messages, and leave an error that grows with them. At first the error does not matter; later it is
# all that is left. So training is cut into intervals, and each begins with the loss F(x) there:
#
#     τ_l = ⌈ √( F(x_l)/F(x_0) ) · τ_0 ⌉        if that is below τ_{l−1}, else ⌈ γ·τ_{l−1} ⌉
#
# γ takes over where the loss stands still. With a learning rate that falls, √( (η_0/η_l)^k · F(x_l)/F(x_0) ): k = 3 is
# what the bound on the error says, k = 1 what is stable; there τ may grow again when the rate has fallen. F is the mean
# over the ranks of the loss of the first step after an average: of parameters that all ranks share. It is agreed by one
# message of 16 bytes, so that all ranks choose the same τ. Source: Wang and Joshi 2019, "Adaptive Communication
# Strategies to Achieve the Best Error-Runtime Trade-off in Local-Update SGD", section 4.


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


# ------------------------------------------------------------
# Local SGD: every rank steps by its own gradients, and every H steps the parameters are averaged.
#
# Data parallelism sends the gradients of every step. But parameters that start equal and take H small steps on samples of
# one kind stay close, and their average is about where the ranks together would have gone:
#
#     H = 4     step step step step ── average ── step step step step ── average …     1/H of the messages and bytes
#
# The larger H, the further the ranks go apart: with H = 1 and a step that is linear in the gradient (SGD, with or without
# weight decay and Nesterov, its momentum kept or averaged; not Adam, not clipping) it is data parallelism, to rounding.
# Post-local SGD takes the first `start` steps, where parameters move fast, as data parallelism, then goes local.
#
# Cost of H steps, by rings: 2(n−1)α + 2(n−1)/n·Nβ instead of H times that. Invariant: after an average the parameters of
# all ranks are equal bit for bit. Sources: Stich 2019, "Local SGD Converges Fast and Communicates Little", algorithm 1;
# Lin et al. 2020, "Don't Use Large Mini-Batches, Use Local SGD", section 3 (post-local); Wang et al. 2020 (`SlowMomentum`).


class LocalSGD(Optimizer):
    """Wraps any optimizer; `step()` steps it, and averages what it steps after every H steps.

        optimizer = LocalSGD(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), comm, H=8)
        loss(model(x), y).backward()                    # x: this rank's part of the batch
        optimizer.step()

    Post-local: data parallelism up to the switch (without `model`, parameters are averaged in each of those steps):

        optimizer = LocalSGD(optimizer, comm, H=8, start=100, model=DataParallel(module, comm))
        with optimizer.local():                         # no_sync() after the switch, nothing before
            loss(model(x), y).backward()
        optimizer.step()

    H: steps of a period, or an `AdaComm`, which wants `step(loss=…)`.  states: "keep", "reset" or "average", what
    becomes of momentum at an average (see above); before the switch it is never reset.  slow_momentum, slow_rate: β
    and α of `SlowMomentum`, after the switch.  buffers: averaged with the parameters, in floating point (running
    statistics); those that are not given stay each rank's own.
    weight: set it before `step()`, on all ranks, to the number of samples behind this step's gradients, where ranks
    differ: an average weighs each rank by its sum since the last one, and a rank with 0 takes no step.
    bucket_bytes, algorithm: of the all-reduces.

    At the start all ranks get rank 0's parameters and buffers. Parameters that are frozen all through a period are not
    sent; the others are, with or without a gradient. For fp16 parameters put it inside: `Masters(params, lambda groups:
    LocalSGD(SGD(groups), comm, H))` averages the masters. All ranks step equally often: a LossScaler needs its `comm`.
    Parameters differ between averages: call `average()` on all ranks before they are compared, evaluated or saved for
    another use. To go on bit for bit, every rank saves its own model and `state_dict()`, and loads both after LocalSGD
    is made.
    Made again over the same parameters and ranks, it replaces the older one, also where that is `optimizer`. It goes
    with SyncBatchNorm, with a DataParallel as its `model`, and around an OffloadedOptimizer; over ranks that are on
    another axis of a mesh than theirs, with a DataParallel, or with the shards of FullySharded (parallel/reducer.py).
    Raises ValueError for values out of range, another device than the Comm's, and a buffer of integers.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        comm: Comm,
        H: int | AdaComm,
        start: int = 0,
        model: DataParallel | None = None,
        states: str = "keep",
        slow_momentum: float = 0.0,
        slow_rate: float = 1.0,
        buffers: Iterable[Tensor] = (),
        bucket_bytes: int = 25 << 20,
        algorithm: str | None = None,
    ):
        if (isinstance(H, int) and H < 1) or start < 0:
            raise ValueError(
                f"a period has H >= 1 steps and starts after 0 or more, not {H} after {start}"
            )
        if states not in STATES:
            raise ValueError(f"states is one of {', '.join(map(repr, STATES))}, not {states!r}")
        assign([], [], bucket_bytes, bucket_bytes)  # raises for a size that cannot be
        if isinstance(optimizer, LocalSGD) and same_group(optimizer.comm, comm):
            optimizer = optimizer.optimizer  # `optimizer = LocalSGD(optimizer, comm, H)`, run again
        if model is not None and not same_group(model.comm, comm):
            raise ValueError(
                f"the model averages gradients over {model.comm.size} ranks, LocalSGD parameters over "
                f"{comm.size}: both need the same ranks"
            )
        self.optimizer = optimizer
        self.comm = comm
        self.start = start
        self.model = model
        self.states = states
        self.bucket_bytes = bucket_bytes
        self.algorithm = algorithm
        self.weight = None
        self.buffers = list(buffers)
        self._H = H
        self._slow = SlowMomentum(slow_momentum, slow_rate)
        self._fresh = Fresh(optimizer)
        self.steps = self.since = 0  # in all, and since the last average
        self._weight = 0.0
        self._moved = {}
        self._entered = False
        params = self._params()
        self._check(params)
        self._claim = Claim(self, "LocalSGD", comm)
        self._claim.take(params, given=(optimizer, model))
        broadcast_(comm, [*params, *self.buffers])

    def _check(self, params: list[Tensor]) -> None:
        for x in (*params, *self.buffers):
            if x.device.type != self.comm.device.type:
                raise ValueError(
                    f"{tuple(x.shape)} is on {x.device}, this Comm passes tensors on {self.comm.device}"
                )
        for x in self.buffers:
            if not x.is_floating_point():
                raise ValueError(
                    f"a buffer of {x.dtype} has no average: give those in floating point"
                )

    param_groups = property(lambda self: self.optimizer.param_groups)
    state = property(lambda self: self.optimizer.state)
    defaults = property(lambda self: self.optimizer.defaults)

    def __repr__(self) -> str:
        return (
            f"LocalSGD({self.optimizer!r}, H={self.H}, start={self.start}, states={self.states!r})"
        )

    def _params(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    @property
    def H(self) -> int:
        """Steps of a period now: 1 before the switch."""
        return (
            1
            if self.steps < self.start
            else self._H.period
            if isinstance(self._H, AdaComm)
            else self._H
        )

    @property
    def dense(self) -> bool:
        """Whether the next step is data parallel: before the switch, with a `model`."""
        return self.model is not None and self.steps < self.start

    def local(self) -> AbstractContextManager:
        """For forward and backward: after the switch `model` averages no gradients, and sends no buffers."""
        self._claim.check()
        self._entered = True
        return nullcontext() if self.model is None or self.dense else self.model.no_sync()

    def step(
        self, closure: Callable[[], Any] | None = None, *, loss: Tensor | float | None = None
    ) -> Any:
        """Step, and average if the period is over. loss: this rank's, for AdaComm; or the closure's result.

        Raises RuntimeError after the switch if `local()` was not called since the last step.
        """
        self._claim.check()
        if self.model is not None and not self.dense and not self._entered:
            raise RuntimeError(
                f"step {self.steps} is local, but its gradients were averaged: "
                "run forward and backward inside `with optimizer.local():`"
            )
        self._entered = False
        # masters need none
        params, result = [p for p in self._params() if p.requires_grad or p.grad is not None], None
        if self.since == 0 and self.steps >= self.start:
            self._slow.start(params)
        if self.dense or self.weight != 0:
            result = self.optimizer.step() if closure is None else self.optimizer.step(closure)
        if self.dense:
            self.steps += 1
            return result
        if self.since == 0 and self.steps >= self.start and isinstance(self._H, AdaComm):
            found = result if loss is None else loss
            self._H.begin(
                self.comm, self.steps, found, self.weight, float(self.param_groups[0]["lr"])
            )
        period = self.H
        self.steps, self.since = self.steps + 1, self.since + 1
        self._weight += self.weight or 0.0
        self._moved |= dict.fromkeys(params)
        if self.since >= period:
            self.average()
        return result

    @torch.no_grad()
    def average(self) -> None:
        """Average now, on all ranks; a period ends. Without a local step since the last average it does nothing."""
        self._claim.check()
        if self.since == 0:
            return
        # what an OffloadedOptimizer holds back is part of the average
        if hasattr(self.optimizer, "finish"):
            self.optimizer.finish()
        params = [p for p in self._params() if p in self._moved]
        states = averaged(self.optimizer, params) if self.states == "average" else []
        weight = None if self.weight is None else self._weight
        average_(
            self.comm, [*params, *self.buffers, *states], weight, self.bucket_bytes, self.algorithm
        )
        if self.steps > self.start:  # the period was a local one
            self._slow.step(self.optimizer, params)
            if self.states == "reset":
                self._fresh.restore(self.optimizer)
        self.since = 0
        self._weight = 0.0
        self._moved = {}
        if isinstance(self._H, AdaComm) and self._H.intervals:
            self._H.averaged(self.comm, self.steps)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """A group more, on all ranks, which get rank 0's."""
        self._claim.check()
        self.optimizer.add_param_group(param_group)
        self._check(self.param_groups[-1]["params"])
        self._claim.take(self.param_groups[-1]["params"], given=(self.optimizer, self.model))
        broadcast_(self.comm, self.param_groups[-1]["params"])

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's, which can load it, and "local_sgd": this rank's own, as its parameters are."""
        params = self._params()
        own = {
            "steps": self.steps,
            "since": self.since,
            "weight": self._weight,
            "slow": self._slow.state(params),
            "moved": [i for i, p in enumerate(params) if p in self._moved],
        }
        if isinstance(self._H, AdaComm):
            own["adaptive"] = self._H.state(self.comm.now())
        return self.optimizer.state_dict() | {"local_sgd": own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """This rank's own; or the wrapped optimizer's alone, without "local_sgd": then counts stay as they are."""
        self.optimizer.load_state_dict(state_dict)
        own, params = state_dict.get("local_sgd"), self._params()
        if own is None:
            return
        self.steps = own["steps"]
        self.since = own["since"]
        self._weight = own["weight"]
        self._moved = dict.fromkeys(params[i] for i in own["moved"])
        self._slow.load(own["slow"], params)
        if isinstance(self._H, AdaComm) and "adaptive" in own:
            self._H.load(own["adaptive"], self.comm.now())
