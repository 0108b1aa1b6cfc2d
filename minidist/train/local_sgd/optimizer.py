"""Local SGD: every rank steps by its own gradients, and every H steps the parameters are averaged.

Data parallelism sends the gradients of every step. But parameters that start equal and take H small steps on samples of
one kind stay close, and their average is about where the ranks together would have gone:

    H = 4     step step step step ── average ── step step step step ── average …     1/H of the messages and bytes

The larger H, the further the ranks go apart: with H = 1 and a step that is linear in the gradient (SGD, with or without
weight decay and Nesterov, its momentum kept or averaged; not Adam, not clipping) it is data parallelism, to rounding.
Post-local SGD takes the first `start` steps, where parameters move fast, as data parallelism, then goes local.

Cost of H steps, by rings: 2(n−1)α + 2(n−1)/n·Nβ instead of H times that. Invariant: after an average the parameters of
all ranks are equal bit for bit. Sources: Stich 2019, "Local SGD Converges Fast and Communicates Little", algorithm 1;
Lin et al. 2020, "Don't Use Large Mini-Batches, Use Local SGD", section 3 (post-local); Wang et al. 2020 (slow.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...collectives import broadcast_
from ...comm.base import Comm
from ...parallel.buckets import assign
from ...parallel.claims import Claim, same_group
from ...parallel.data import DataParallel
from .adaptive import AdaComm
from .averages import average_
from .slow import SlowMomentum
from .states import STATES, Fresh, averaged


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
    becomes of momentum at an average (states.py); before the switch it is never reset.  slow_momentum, slow_rate: β
    and α of slow.py, after the switch.  buffers: averaged with the parameters, in floating point (running statistics);
    those that are not given stay each rank's own.
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
    another axis of a mesh than theirs, with a DataParallel, or with the shards of FullySharded (parallel/claims.py).
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
