"""Master weights: parameters in fp16 or bf16 that compute, and copies of them in fp32 that the optimizer steps.

An update is often a thousandth of its weight. fp16 has 11 bits: w + u with |u| < 2⁻¹²·|w| is w again, and the update
is lost, every time. So the sum is formed, and kept, in fp32, and only its rounding computes:

    fp16 weight ──forward, backward──> fp16 gradient ──> fp32 gradient ──optimizer──> fp32 master ──> fp16 weight

Cost: 4 bytes a parameter beside the 2 + 2 of parameter and gradient in fp16; with AdamW's two states 16 in all. At the
step the gradients are there in fp32 too, each freed in fp16 as it is converted (unless it lies in a bucket).
Invariant: after a step every parameter is its master, rounded. Source: Micikevicius et al. 2018, section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Masters(Optimizer):
    """Any optimizer, stepping copies of the parameters in `dtype`.

        model.half()
        optimizer = Masters(model.parameters(), torch.optim.AdamW, lr=1e-3)

    params: as for any optimizer: parameters, or groups. Those that are in `dtype`, or wider, are stepped as they are.
    optimizer_class: a class, or a function of groups, called with the masters and `kwargs`. inner: what it made.
    param_groups: of the parameters, with the inner optimizer's options; a scheduler may change them. state: of the
    masters.  `masters()`: the masters, in order.

    `gradients()`, or `LossScaler.unscale_`, puts gradients in `dtype` into `p.grad`: from then until the step they
    can be clipped and looked at as usual. Parameters that others change (load_state_dict, broadcast) are followed:
    where a parameter is no longer its rounded master, the master becomes the parameter.
    """

    def __init__(
        self,
        params: Iterable,
        optimizer_class: Callable[..., Optimizer],
        dtype: torch.dtype = torch.float32,
        **kwargs,
    ):
        self.inner: Optimizer | None = None
        self.dtype = dtype
        self._make = optimizer_class
        self._kwargs = kwargs
        self._versions = {}
        super().__init__(params, {})
        self.defaults, self.state = self.inner.defaults, self.inner.state

    def __getstate__(self) -> dict[str, Any]:
        # torch's knows of none, so a copy would lack them
        own = ("inner", "dtype", "_make", "_kwargs", "_versions")
        return super().__getstate__() | {name: getattr(self, name) for name in own}

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Parameters to step from now on; their masters are made here."""
        super().add_param_group(group)
        group = self.param_groups[-1]
        masters = [self._master(p) for p in group["params"]]
        self._versions |= {p: p._version for p in group["params"]}
        if self.inner is None:
            self.inner = self._make([{**group, "params": masters}], **self._kwargs)
        else:
            self.inner.add_param_group({**group, "params": masters})
        group |= {**self.inner.param_groups[-1], "params": group["params"]}

    def _master(self, p: Tensor) -> Tensor:
        return p if p.dtype.itemsize >= self.dtype.itemsize else p.detach().to(self.dtype)

    def masters(self) -> list[Tensor]:
        """What the inner optimizer steps, in the order of the groups; a wide parameter is its own master."""
        return [m for group in self.inner.param_groups for m in group["params"]]

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        """(parameter, master) of those that have one."""
        params = [p for group in self.param_groups for p in group["params"]]
        return [(p, m) for p, m in zip(params, self.masters(), strict=True) if p is not m]

    @torch.no_grad()
    def gradients(self) -> list[Tensor]:
        """The gradients in the dtype of the masters, which are in `p.grad` from now on."""
        for p, m in self._pairs():
            if p.grad is not None and p.grad.dtype != m.dtype:
                p.grad_dtype = None  # else torch insists on the parameter's dtype
                p.grad = p.grad.to(m.dtype)
        return [
            p.grad for group in self.param_groups for p in group["params"] if p.grad is not None
        ]

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Step the masters with the gradients, and round them into the parameters."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.gradients()
        self._follow()
        for p, m in self._pairs():
            m.grad = p.grad
        _options(self.param_groups, self.inner.param_groups)
        self.inner.step()
        _options(self.inner.param_groups, self.param_groups)
        for _, m in self._pairs():
            m.grad = None
        self._round()
        return loss

    def _follow(self) -> None:
        """Take over what others have written into the parameters; masters of all else keep their bits."""
        for p, m in self._pairs():
            if p._version != self._versions[p]:
                m.copy_(torch.where(m.to(p.dtype) == p, m, p.to(m.dtype)))

    def _round(self) -> None:
        pairs = self._pairs()
        if pairs:
            torch._foreach_copy_(*map(list, zip(*pairs, strict=True)))
        self._versions = {p: p._version for group in self.param_groups for p in group["params"]}

    @torch.no_grad()
    def load_masters(self, values: Iterable[Tensor]) -> None:
        """Masters from `values`, in order, rounded into the parameters. ValueError for another number of them."""
        values, masters = list(values), self.masters()
        if len(values) != len(masters):
            raise ValueError(f"{len(values)} values were given for {len(masters)} masters")
        for m, value in zip(masters, values, strict=True):
            m.copy_(value)
        self._round()

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's, which can load it, and "masters". (A copy of what the parameters cannot hold.)"""
        return self.inner.state_dict() | {"masters": [m.detach() for m in self.masters()]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Also from the inner class's own state_dict, without masters: these stay as they are."""
        self.inner.load_state_dict(state_dict)
        self.state = self.inner.state
        _options(self.inner.param_groups, self.param_groups)
        if "masters" in state_dict:
            self.load_masters(state_dict["masters"])


def _options(source: list[dict], to: list[dict]) -> None:
    """Learning rates and all other options of the groups, but not their parameters."""
    for a, b in zip(source, to, strict=True):
        b.update({key: value for key, value in a.items() if key != "params"})
