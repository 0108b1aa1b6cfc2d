"""Local SGD: take steps alone, and average the parameters now and then.

LocalSGD              any optimizer, with an average every H steps; post-local with `start`
AdaComm               H from the loss: long periods first, short ones as the loss falls
average_parameters    the naive average, one all-reduce for each parameter
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..arguments import instance, whole
from ..collectives import all_reduce_, broadcast_
from ..comm.base import Comm
from ..decide import decide
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
    """The naive average, in place: one all-reduce for each tensor. weight: see `share`.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel.local_sgd import average_parameters
    >>> def program(comm):
    ...     x = torch.tensor([10.0 * comm.rank])
    ...     average_parameters(comm, [x], weight=1 + comm.rank)  # one sample here, two there
    ...     return x.item()
    >>> [round(x, 2) for x in World(2).run(program)]
    [6.67, 6.67]
    """
    part = share(comm, weight)
    for x in tensors:
        all_reduce_(comm, x.mul_(part))


@torch.no_grad()
def average_(
    comm: Comm,
    tensors: Sequence[Tensor],
    weight: float | None = None,
    bucket_bytes: int = 25 << 20,
) -> None:
    """The same in buckets of at most `bucket_bytes`. ValueError for a size below 1."""
    sizes = [x.numel() * x.element_size() for x in tensors]
    buckets = assign(sizes, [x.dtype for x in tensors], bucket_bytes, bucket_bytes)
    part = share(comm, weight)
    for positions in buckets:
        bucket = [tensors[i].mul_(part) for i in positions]
        all_reduce_(comm, bucket)


# ------------------------------------------------------------
# Slow momentum: the way from one average to the next is a step, too, and gets a momentum of its own.
#
# Averaging every H steps is as if all ranks together took one large step, from x to the average x̄. SlowMo takes it for
# a gradient: divided by the learning rate γ, which makes it independent of the rate, it moves a slow momentum u:
#
#     u ← βu + (x − x̄)/γ          x ← x − γu
#
# With β = 0 that is x̄, plain Local SGD. γ is the rate of the parameter's group at the average; where it is 0, nobody has
# moved by a gradient: u decays, x becomes x̄. All ranks compute it alike, without a message.
#
# Memory: x and u, 2Ψ numbers on each rank. Source: Wang et al. 2020, "SlowMo: Improving Communication-Efficient
# Distributed SGD with Slow Momentum", algorithm 1, with α = 1.


@torch.no_grad()
def slow_step_(average: Tensor, anchor: Tensor, momentum: Tensor, beta: float, rate: float) -> None:
    """Move a parameter, which is the average now, on from its `anchor`, the parameter after the last average."""
    momentum.mul_(beta)
    if rate:
        momentum.add_(anchor - average, alpha=1 / rate)
        average.copy_(anchor.sub_(momentum, alpha=rate))
    else:
        anchor.copy_(average)


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


def averaged_states(optimizer: Optimizer, params: list[Tensor]) -> list[Tensor]:
    """The states of `params` that are averaged, in the order of parameters and of names.

    Every rank must have the same: each has stepped the same parameters.
    """
    return [
        x
        for p in params
        for name, x in sorted(optimizer.state.get(p, {}).items())
        if name != "step" and isinstance(x, Tensor) and x.shape == p.shape and x.is_floating_point()
    ]


# ------------------------------------------------------------
# AdaComm: how many steps to take alone, from the loss. Far from the minimum many; near it, few.
#
# Long periods save messages, and leave an error that grows with them. At first the error does not matter; later it is
# all that is left. So training is cut into intervals, and each begins with the loss F(x) there:
#
#     τ_l = ⌈ √( F(x_l)/F(x_0) ) · τ_0 ⌉        if that is below τ_{l−1}, else ⌈ γ·τ_{l−1} ⌉
#
# γ takes over where the loss stands still. F is the mean over the ranks of the loss of the first step after an average:
# of parameters that all ranks share. It is agreed by one message of 16 bytes, so that all ranks choose the same τ.
# Source: Wang and Joshi 2019, "Adaptive Communication Strategies to Achieve the Best Error-Runtime Trade-off in
# Local-Update SGD", section 4, for a rate that does not change, and intervals in steps.


class Interval(NamedTuple):
    """step: of the run, at which it began.  loss: F there.  period: τ."""

    step: int
    loss: float
    period: int


class AdaComm:
    """H for a `LocalSGD`, which asks it at the first step after each average.

    tau_0: the first τ.  steps: of an interval at least; it ends with the average after them.  gamma: γ.
    intervals: all until now, to look at. On meta tensors F stays F(x_0).
    Raises ValueError for values out of range.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel import AdaComm, LocalSGD
    >>> def program(comm):
    ...     p = torch.nn.Parameter(torch.zeros(1))
    ...     optimizer = LocalSGD(torch.optim.SGD([p], lr=0.1), comm, H=AdaComm(tau_0=4, steps=4))
    ...     periods = []
    ...     for loss in [16.0] * 4 + [4.0] * 4 + [1.0] * 4:
    ...         p.grad = torch.zeros(1)
    ...         optimizer.step(loss=loss)
    ...         periods.append(optimizer.H)
    ...     return periods
    >>> World(2).run(program)[0]  # √(4/16)·4 is 2, and √(1/16)·4 is 1
    [4, 4, 4, 4, 2, 2, 2, 2, 1, 1, 1, 1]
    """

    def __init__(self, tau_0: int, steps: int, gamma: float = 0.5):
        if tau_0 < 1 or steps < 1 or not 0 < gamma < 1:
            raise ValueError(
                f"tau_0 and the steps of an interval are at least 1 and gamma between 0 and 1, not {tau_0}, "
                f"{steps} and {gamma}"
            )
        self.tau_0 = tau_0
        self.steps = steps
        self.gamma = gamma
        self.intervals: list[Interval] = []

    @property
    def period(self) -> int:
        """τ now."""
        return self.intervals[-1].period if self.intervals else self.tau_0

    def begin(
        self, comm: Comm, step: int, loss: Tensor | float | None, weight: float | None
    ) -> None:
        """The first step after an average: the next interval, if the last one is over. loss: this rank's.

        weight: of this rank's loss, None where all weigh alike. ValueError without a loss, and for one that is
        negative or not finite on average (or 0, if it is the first).
        """
        if self.intervals and step - self.intervals[-1].step < self.steps:
            return
        agreed = self._agreed(comm, loss, weight)
        first = self.intervals[0].loss if self.intervals else agreed
        if not (0 < first < math.inf and 0 <= agreed < math.inf):
            raise ValueError(
                f"AdaComm divides losses above 0, not {agreed} by the first one, {first}"
            )
        self.intervals.append(Interval(step, agreed, self._choose(agreed / first)))

    def _agreed(self, comm: Comm, loss: Tensor | float | None, weight: float | None) -> float:
        """The mean loss of all ranks."""
        if loss is None:
            raise ValueError(
                f"rank {comm.rank} gave no loss, and H depends on it: step(loss=…), or a closure"
            )
        loss, weight = torch.as_tensor(loss).detach(), 1.0 if weight is None else float(weight)
        own = torch.zeros(2, dtype=torch.float64, device=comm.device)
        if weight:  # the mean loss of no samples is nan
            own = torch.stack([loss.to(own) * weight, torch.full_like(own[0], weight)])
        total, weights = all_reduce_(comm, own).unbind()
        return decide(total / weights, on_meta=1.0)

    def _choose(self, ratio: float) -> int:
        """The period at a loss of `ratio` times the first."""
        if not self.intervals:
            return self.tau_0
        period = max(1, math.ceil(math.sqrt(ratio) * self.tau_0))
        if period < self.period:
            return period
        return max(1, math.ceil(self.gamma * self.period))


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
# Post-local SGD takes the first `start` steps, where parameters move fast, with H = 1, then goes local.
#
# Cost of H steps, by rings: 2(n−1)α + 2(n−1)/n·Nβ instead of H times that. Invariant: after an average the parameters of
# all ranks are equal bit for bit. Sources: Stich 2019, "Local SGD Converges Fast and Communicates Little", algorithm 1;
# Lin et al. 2020, "Don't Use Large Mini-Batches, Use Local SGD", section 3 (post-local).


class LocalSGD(Optimizer):
    """Wraps any optimizer; `step()` steps it, and averages what it steps after every H steps.

        optimizer = LocalSGD(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), comm, H=8)
        loss(model(x), y).backward()                    # x: this rank's part of the batch
        optimizer.step()

    Post-local: with `start=100` the first 100 steps average after each. Where the step is not linear in the gradient,
    average the gradients, too, and all ranks take the step of data parallelism:

        if optimizer.steps < 100:
            average_gradients(comm, model)

    H: steps of a period, or an `AdaComm`, which wants `step(loss=…)`.
    states: what becomes of the optimizer's states at an average. "keep": each rank keeps its own; "reset": they are as
    they were when the optimizer was wrapped (before the switch they are never reset); "average": those in the shape of
    their parameter are averaged with it.  slow_momentum: β of SlowMo, after the switch.
    weight: set it before `step()`, on all ranks, to the number of samples behind this step's gradients, where ranks
    differ: an average weighs each rank by its sum since the last one, and a rank with 0 takes no step.

    At the start all ranks get rank 0's parameters. Parameters that are frozen all through a period are not sent; the
    others are, with or without a gradient. Buffers stay each rank's own; `average_parameters` takes them, too. For fp16
    parameters put it inside: `Masters(params, lambda groups: LocalSGD(SGD(groups), comm, H))` averages the masters. All
    ranks step equally often: a LossScaler needs its `comm`.
    Parameters differ between averages: call `average()` on all ranks before they are compared, evaluated or saved for
    another use. To go on bit for bit, every rank saves its own model and `state_dict()`, and loads both after LocalSGD
    is made.
    Made again over the same parameters and ranks, it replaces the older one, also where that is `optimizer`. It goes
    with SyncBatchNorm, and around an OffloadedOptimizer; over ranks that are on another axis of a mesh than theirs, with
    a DataParallel, or with the shards of FullySharded (parallel/reducer.py).
    Raises ValueError for values out of range, and parameters on another device than the Comm's.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel import LocalSGD
    >>> def program(comm):
    ...     p = torch.nn.Parameter(torch.zeros(1))
    ...     optimizer = LocalSGD(torch.optim.SGD([p], lr=1.0), comm, H=2)
    ...     seen = []
    ...     for _ in range(4):
    ...         p.grad = torch.tensor([-1.0 - 2 * comm.rank])  # rank 0 goes by 1, rank 1 by 3
    ...         optimizer.step()
    ...         seen.append(p.item())
    ...     return seen
    >>> World(2).run(program)  # after each second step both stand at the mean
    [[1.0, 4.0, 5.0, 8.0], [3.0, 4.0, 7.0, 8.0]]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        comm: Comm,
        H: int | AdaComm,
        start: int = 0,
        states: str = "keep",
        slow_momentum: float = 0.0,
    ):
        instance(optimizer, Optimizer, "LocalSGD(optimizer, comm, H) wraps an optimizer")
        if not isinstance(H, AdaComm):
            whole(H, "a period has H steps, at least 1", 1)
        whole(start, "periods start after at least 0 steps", 0)
        if states not in STATES:
            raise ValueError(f"states is one of {', '.join(map(repr, STATES))}, not {states!r}")
        if not 0 <= slow_momentum < 1:
            raise ValueError(f"a slow momentum is from 0 to below 1, not {slow_momentum}")
        if isinstance(optimizer, LocalSGD) and same_group(optimizer.comm, comm):
            optimizer = optimizer.optimizer  # `optimizer = LocalSGD(optimizer, comm, H)`, run again
        self.optimizer: Optimizer = optimizer
        self.comm: Comm = comm
        self.start = start
        self.states = states
        self.slow_momentum = slow_momentum
        self.weight: float | None = None
        self.adaptive = H if isinstance(H, AdaComm) else None
        self._H = H
        self._first_states = (
            copy.deepcopy(optimizer.state_dict()["state"]) if states == "reset" else {}
        )
        self.steps = self.since = 0  # in all, and since the last average
        self._samples = 0.0  # since the last average
        self._moved: dict[Tensor, None] = {}  # what was stepped since then
        self._slow: dict[Tensor, list[Tensor]] = {}  # anchor and momentum of each parameter
        self._claim = Claim(self, "LocalSGD", comm)
        self._begin_alike(self._params())

    def _begin_alike(self, params: list[Tensor]) -> None:
        for p in params:
            if p.device.type != self.comm.device.type:
                raise ValueError(
                    f"{tuple(p.shape)} is on {p.device}, this Comm passes tensors on {self.comm.device}"
                )
        self._claim.take(params, given=[self.optimizer])
        broadcast_(self.comm, params)

    param_groups = property(lambda self: self.optimizer.param_groups)
    state = property(lambda self: self.optimizer.state)
    defaults = property(lambda self: self.optimizer.defaults)

    def _params(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    @property
    def H(self) -> int:
        """Steps of a period now: 1 before the switch."""
        if self.steps < self.start:
            return 1
        return self._H.period if isinstance(self._H, AdaComm) else self._H

    def step(
        self, closure: Callable[[], Any] | None = None, *, loss: Tensor | float | None = None
    ) -> Any:
        """Step, and average if the period is over. loss: this rank's, for AdaComm; or the closure's result."""
        self._claim.check()
        begins = self.since == 0 and self.steps >= self.start
        # masters need no gradient
        params = [p for p in self._params() if p.requires_grad or p.grad is not None]
        if begins and self.slow_momentum:
            for p in params:
                if p not in self._slow:
                    self._slow[p] = [p.detach().clone(), torch.zeros_like(p)]
        result = None
        if self.weight != 0:
            result = self.optimizer.step() if closure is None else self.optimizer.step(closure)
        if begins and self.adaptive is not None:
            loss = result if loss is None else loss
            self.adaptive.begin(self.comm, self.steps, loss, self.weight)
        period = self.H
        self.steps += 1
        self.since += 1
        self._samples += self.weight or 0.0
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
        states = averaged_states(self.optimizer, params) if self.states == "average" else []
        # nothing beside one sample; where nobody has any, all weigh alike
        weight = None if self.weight is None else max(self._samples, 1e-300)
        average_(self.comm, [*params, *states], weight)
        if self.steps > self.start:  # the period was a local one
            self._end_local(params)
        self.since = 0
        self._samples = 0.0
        self._moved = {}

    def _end_local(self, params: list[Tensor]) -> None:
        """Move on with slow momentum, and forget the fast one where it is reset."""
        rates = {p: float(group["lr"]) for group in self.param_groups for p in group["params"]}
        for p in params if self.slow_momentum else ():
            anchor, momentum = self._slow[p]
            slow_step_(p, anchor, momentum, self.slow_momentum, rates[p])
        if self.states == "reset":
            for state in self.state.values():
                for x in state.values():
                    if isinstance(x, Tensor):
                        x.zero_()  # it may be a view of memory that the optimizer will use again
            fresh = self.optimizer.state_dict() | {"state": copy.deepcopy(self._first_states)}
            self.optimizer.load_state_dict(fresh)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As of the wrapped optimizer."""
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """A group more, on all ranks, which get rank 0's."""
        self._claim.check()
        self.optimizer.add_param_group(param_group)
        self._begin_alike(self.param_groups[-1]["params"])

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's, which can load it, and "local_sgd": this rank's own, as its parameters are."""
        params = self._params()
        own = {
            "steps": self.steps,
            "since": self.since,
            "samples": self._samples,
            "slow": {i: self._slow[p] for i, p in enumerate(params) if p in self._slow},
            "moved": [i for i, p in enumerate(params) if p in self._moved],
            "intervals": []
            if self.adaptive is None
            else [list(i) for i in self.adaptive.intervals],
        }
        return self.optimizer.state_dict() | {"local_sgd": own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """This rank's own; or the wrapped optimizer's alone, without "local_sgd": then counts stay as they are."""
        self.optimizer.load_state_dict(state_dict)
        own, params = state_dict.get("local_sgd"), self._params()
        if own is None:
            return
        self.steps = own["steps"]
        self.since = own["since"]
        self._samples = own["samples"]
        self._moved = dict.fromkeys(params[i] for i in own["moved"])
        self._slow = {
            params[i]: [x.detach().clone().to(params[i]) for x in pair]
            for i, pair in own["slow"].items()
        }
        if self.adaptive is not None:
            self.adaptive.intervals = [Interval(*i) for i in own["intervals"]]
