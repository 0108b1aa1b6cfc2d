"""Four ways to mix precision, from all fp32 to all half, chosen in one call. The names are apex's.

    level   parameters              forward              the optimizer steps       loss scaling (fp16)
    O0      fp32                    fp32                 the parameters            none
    O1      fp32                    by lists (autocast)  the parameters            dynamic
    O2      half, batch norm fp32   half                 fp32 masters              dynamic
    O3      half                    half                 the halves themselves     none

O1 is the safe one, O2 saves more memory and casts less, O3 is the speed to compare the others with: it trains only
where neither gradients nor updates are too small. bf16 has the range of fp32, so no level scales its loss.

    amp = prepare(model, lambda params: torch.optim.SGD(params, lr=0.1), level="O2")
    with amp.autocast:
        loss = F.cross_entropy(amp.model(x), y)
    amp.step(loss)

Source: NVIDIA apex, `apex.amp`, "opt_levels".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from ...comm.base import Comm
from .autocast import HALVES, autocast, cast
from .masters import Masters
from .scaler import LossScaler


class Level(NamedTuple):
    """What a level does."""

    lists: bool  # autocast in forward
    half: bool  # parameters and inputs
    wide_norms: bool  # except those of batch norm
    masters: bool
    scaled: bool


LEVELS = {
    "O0": Level(lists=False, half=False, wide_norms=False, masters=False, scaled=False),
    "O1": Level(lists=True, half=False, wide_norms=False, masters=False, scaled=True),
    "O2": Level(lists=False, half=True, wide_norms=True, masters=True, scaled=True),
    "O3": Level(lists=False, half=True, wide_norms=False, masters=False, scaled=False),
}


class Prepared(NamedTuple):
    """A model, its optimizer, its scaler, and the context for forward and loss; `step(loss)` does the rest."""

    model: nn.Module
    optimizer: Optimizer
    scaler: LossScaler
    autocast: autocast

    def step(self, loss: Tensor, max_norm: float | None = None) -> None:
        """Backward, clip the global norm of the gradients to `max_norm`, step or skip, choose the scale, zero them."""
        self.scaler.scale(loss).backward()
        if max_norm is not None:
            self.scaler.unscale_(self.optimizer)
            self._clip(max_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def _clip(self, max_norm: float) -> None:
        """By whoever has the gradients: a sharded optimizer or model knows the norm over all ranks."""
        for owner in (self.optimizer, self.model):
            if hasattr(owner, "clip_grad_norm_"):
                owner.clip_grad_norm_(max_norm)
                return
        params = [p for group in self.optimizer.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(params, max_norm)


def prepare(
    model: nn.Module,
    optimizer: Callable[[list[nn.Parameter]], Optimizer],
    level: str = "O1",
    dtype: torch.dtype = torch.float16,
    comm: Comm | None = None,
    masters: bool | None = None,
    scaler: LossScaler | None = None,
    **lists,
) -> Prepared:
    """`model`, in fp32, made ready for a level, in place; see the table above.

    optimizer: makes one from parameters.  dtype: of the halves.  comm: of the ranks that step together (see
    LossScaler).  masters: False at O2 for an optimizer that has its own.  scaler: instead of the level's own.
    lists: white, black, gray, cache for autocast.
    In half, a forward casts its inputs to half and its results to fp32, for the loss.
    Errors: ValueError for an unknown level or dtype, or a model that is not in fp32.
    """
    if level not in LEVELS or dtype not in HALVES:
        raise ValueError(
            f"the levels are {', '.join(LEVELS)} in one of {HALVES}, not {level!r} in {dtype}"
        )
    other = {p.dtype for p in model.parameters()} - {torch.float32}
    if other:
        raise ValueError(
            f"a model is prepared from fp32; this one has parameters in {sorted(map(str, other))}"
        )
    chosen = LEVELS[level]
    params = [p for p in model.parameters() if p.requires_grad]
    if chosen.half:
        halve_(model, dtype, chosen.wide_norms)
        model.register_forward_pre_hook(_inputs(dtype), with_kwargs=True)
        model.register_forward_hook(lambda module, args, out: cast(out, lambda x: x.float()))
    if chosen.masters and masters is not False:
        # from the halves: ranks that get theirs by broadcast have the same
        stepping = Masters(params, optimizer)
    else:
        stepping = optimizer(params)
    own = LossScaler(enabled=chosen.scaled and dtype == torch.float16, comm=comm)
    return Prepared(model, stepping, scaler or own, autocast(dtype, **lists, enabled=chosen.lists))


def _inputs(dtype: torch.dtype) -> Callable[..., Any]:
    return lambda module, args, kwargs: cast((args, kwargs), lambda x: x.to(dtype))


@torch.no_grad()
def halve_(
    model: nn.Module, dtype: torch.dtype = torch.float16, wide_norms: bool = True
) -> nn.Module:
    """Parameters and buffers of `model` in `dtype`, in place; wide_norms: all but those of batch norm.

    Parameters stay the same objects, so tied ones stay tied. Batch norm keeps running means, to which each batch
    adds a little, and so loses in half what updates lose.
    """
    for module in model.modules():
        if wide_norms and isinstance(module, _BatchNorm):
            continue
        for p in module.parameters(recurse=False):
            p.data, p.grad = p.data.to(dtype), None
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = cast(buffer, lambda x: x.to(dtype))
    return model
