"""Loss scaling: multiply the loss by S, so that small gradients do not become zero in fp16; divide by S in fp32.

Backward is linear in the gradient of the loss, so every gradient comes out S times as large. fp16 holds nothing
below 2⁻²⁵ and nothing above 65,504, so S is chosen as large as can be without overflow:

    scale(loss).backward()     gradients are S times as large, in fp16
    unscale_(optimizer)        times 1/S in fp32; is any of them inf or nan?     (once a step; then clip, if you clip)
    step(optimizer)            the optimizer's step, or none if one was found: on all ranks or on none
    update()                   one found: S ← S·backoff; `growth_interval` steps without one: S ← S·growth

Cost: one reading of each gradient, one all-reduce of 4 bytes. Invariant: a skipped step changes no parameter and no
state of the optimizer. Source: Micikevicius et al. 2018, "Mixed Precision Training", sections 3.2 and 4 (dynamic);
the numbers are those of torch.amp.GradScaler.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...collectives import all_reduce_
from ...comm.base import Comm
from ..decide import decide

UNSCALED, STEPPED = "unscaled", "stepped"


class LossScaler:
    """Scales a loss, and steps optimizers with gradients that are finite on every rank.

        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)                     # only if the gradients are clipped, or looked at
        scaler.step(optimizer)
        scaler.update()

    init: the first S.  growth_factor > 1, backoff_factor < 1, growth_interval in steps.  enabled: False does nothing
    but step.  dynamic: False keeps S; a step with an inf is skipped all the same.  comm: ranks that step together
    agree whether one of them has found an inf, with one all-reduce for each optimizer; None: this rank alone decides,
    which is right only where all ranks see the same gradients.

    Several optimizers: `step` for each, one `update`. An optimizer that keeps its gradients elsewhere has a method
    `gradients()`, which brings them there and returns them (see Masters). On meta tensors no step is skipped.
    skipped: how many steps were. Errors: ValueError for factors that neither grow nor back off, for a gradient in
    fp16 (it would lose, divided in fp16, what scaling saved: use Masters), and where there is no gradient at all;
    RuntimeError where the calls come in another order.
    """

    def __init__(
        self,
        init: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        comm: Comm | None = None,
        dynamic: bool = True,
    ):
        if not (
            growth_factor > 1
            and 0 < backoff_factor < 1
            and growth_interval >= 1
            and 0 < init < math.inf
        ):
            raise ValueError(
                f"S must start finite and above 0, grow by a factor above 1 after 1 step or more and back off by one "
                f"below 1, not start at {init}, grow by {growth_factor} after {growth_interval}, back off by "
                f"{backoff_factor}"
            )
        self.growth_factor = growth_factor
        self.backoff_factor = backoff_factor
        self.growth_interval = growth_interval
        self.enabled = enabled
        self.comm = comm
        self.dynamic = dynamic
        self.skipped = 0
        self._scale, self._good = float32(init), 0
        # of each optimizer since the last update: what was done, any inf
        self._found: dict[int, tuple[str, bool]] = {}

    def get_scale(self) -> float:
        """S; 1 if scaling is off."""
        return self._scale if self.enabled else 1.0

    def scale(self, outputs: Tensor | Iterable):
        """`outputs` times S: a tensor, or tensors in lists and tuples."""
        if not self.enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * self._scale
        if not isinstance(outputs, list | tuple):
            raise ValueError(
                f"what is scaled is a tensor, or a list or tuple of them, not {type(outputs).__name__}"
            )
        return type(outputs)(map(self.scale, outputs))

    @torch.no_grad()
    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of `optimizer` by S, in place, and see whether all are finite. Once a step."""
        if not self.enabled:
            return
        if id(optimizer) in self._found:
            stage, _ = self._found[id(optimizer)]
            raise RuntimeError(
                f"this optimizer is {stage} since the last update(): unscale_ comes once, before step"
            )
        grads = gradients(optimizer)
        if not grads and self.comm is None:
            raise ValueError(
                "none of the optimizer's parameters has a gradient: was scale(loss).backward() called?"
            )
        if grads:
            torch._foreach_mul_(grads, float32(1 / self._scale))
        self._found[id(optimizer)] = UNSCALED, self._agree(grads)

    def _agree(self, grads: list[Tensor]) -> bool:
        """Whether a gradient of any rank is inf or nan."""
        grads = [g for g in grads if g.numel()]
        device = (
            grads[0].device if self.comm is None and grads else getattr(self.comm, "device", None)
        )
        flag = torch.zeros((), dtype=torch.float32, device=device)
        if grads:
            largest = torch._foreach_norm(grads, math.inf)  # of a gradient with a nan: nan
            flag = (
                torch.stack([x.isfinite().to(device) for x in largest])
                .all()
                .logical_not()
                .to(flag.dtype)
            )
        if self.comm is not None:
            all_reduce_(self.comm, flag, "max")
        return bool(decide(flag, on_meta=False))

    def step(self, optimizer: Optimizer, *args, **kwargs) -> Any:
        """`optimizer.step(…)` and its result, with gradients divided by S; None and no step if one is inf or nan."""
        if not self.enabled:
            return optimizer.step(*args, **kwargs)
        if args or "closure" in kwargs:
            raise RuntimeError(
                "a closure computes gradients within step(), where they cannot be checked before it"
            )
        if id(optimizer) not in self._found:
            self.unscale_(optimizer)
        stage, found = self._found[id(optimizer)]
        if stage == STEPPED:
            raise RuntimeError("this optimizer is stepped since the last update(): step comes once")
        self._found[id(optimizer)] = STEPPED, found
        self.skipped += found
        return None if found else optimizer.step(**kwargs)

    def update(self, new_scale: float | None = None) -> None:
        """Choose the next S, by what the steps since the last update have found; or take `new_scale`."""
        if not self.enabled:
            return
        if new_scale is not None:
            self._scale = float32(new_scale)
        elif not self._found:
            raise RuntimeError("no optimizer was unscaled or stepped since the last update()")
        elif self.dynamic:
            self._adapt(any(found for _, found in self._found.values()))
        self._found.clear()

    def _adapt(self, found: bool) -> None:
        self._good = 0 if found else self._good + 1
        if found:
            smaller = float32(self._scale * self.backoff_factor)
            if smaller == 0:
                raise RuntimeError(
                    f"S = {self._scale} was not small enough: gradients are inf or nan whatever S is"
                )
            self._scale = smaller
        elif self._good == self.growth_interval:
            grown = float32(self._scale * self.growth_factor)
            self._scale, self._good = grown if math.isfinite(grown) else self._scale, 0

    def state_dict(self) -> dict[str, Any]:
        """What to save, under the names of torch's GradScaler, which can load it; empty if scaling is off."""
        if not self.enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "_growth_tracker": self._good,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was called, here or by torch's GradScaler."""
        if not self.enabled:
            return
        if not state:
            raise ValueError("the state has 0 of its 5 entries: it was saved while scaling was off")
        self._scale, self._good = float32(state["scale"]), state["_growth_tracker"]
        self.growth_factor, self.backoff_factor = state["growth_factor"], state["backoff_factor"]
        self.growth_interval = state["growth_interval"]


def gradients(optimizer: Optimizer) -> list[Tensor]:
    """The gradients that `optimizer.step()` will apply; of sparse ones the values. ValueError for one in fp16."""
    if hasattr(optimizer, "gradients"):
        found = optimizer.gradients()
    else:
        found = [
            p.grad
            for group in optimizer.param_groups
            for p in group["params"]
            if p.grad is not None
        ]
    found = [g._values() if g.is_sparse else g for g in found]
    low = sum(g.dtype == torch.float16 for g in found)
    if low:
        raise ValueError(
            f"{low} of {len(found)} gradients are in fp16, and lose what scaling saved if divided there: "
            "step fp32 copies of the parameters, Masters(params, optimizer_class, …)"
        )
    return found


def float32(x: float) -> float:
    """`x` rounded to fp32, as the scale of torch's GradScaler is, which lies in a tensor; inf above its range."""
    return ctypes.c_float(x).value
