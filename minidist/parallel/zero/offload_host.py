"""The host's side of offload: copies of the parameters, gradients as they come down, the plain optimizer, its step.

Nothing is converted on its way: a copy between dtypes would travel in the wider one. So a gradient comes down as it
is (2 bytes a parameter in fp16) and grows on the host; a new parameter shrinks there, then goes up. In a World what
lies here is the host's by `comm.host`, and so are its time and its memory.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...comm.base import Comm, Host


class Hosted:
    """`optimizer`, of `optimizer_class`, on copies of the parameters of `groups` in the memory of `host`.

    dtype: of the copies; None: each has its parameter's.  masters: parameter -> copy.  gradients: parameter -> what
    comes down.  arriving: events after which it has come, from a GPU.  fresh: parameter -> its next value, still on the
    host; None once all are on the device.
    """

    def __init__(
        self,
        groups: list[dict],
        optimizer_class: Callable,
        host: Host,
        dtype: torch.dtype | None,
        **kwargs,
    ):
        self.host, self.dtype = host, dtype
        self.masters: dict[Tensor, Tensor] = {}
        self.gradients: dict[Tensor, Tensor] = {}
        self.arriving: list = []
        self.fresh: dict[Tensor, Tensor] | None = None
        with host:
            self.optimizer = optimizer_class([self._copied(group) for group in groups], **kwargs)

    def follow(self, groups: list[dict]) -> None:
        """Take over groups, and parameters in them, that are new."""
        theirs = self.optimizer.param_groups
        for group, there in zip(groups, theirs, strict=False):
            there["params"] = self._copied(group)["params"]
        with self.host:
            for group in groups[len(theirs) :]:
                self.optimizer.add_param_group(self._copied(group))

    def _copied(self, group: dict) -> dict:
        for p in group["params"]:
            if p not in self.masters:
                with self.host:
                    self.masters[p] = self._wide(self._down(p.detach()), p)
        return group | {"params": [self.masters[p] for p in group["params"]]}

    def _wide(self, x: Tensor, p: Tensor) -> Tensor:
        return x.to(self.dtype or p.dtype)

    @torch.no_grad()
    def _coming(self, x: Tensor) -> Tensor:
        """A copy in the host's memory. From a GPU it is on its way, on the current stream, into pinned memory, which
        the GPU can write by itself; the host reads it after `_arrive`."""
        with self.host:
            there = torch.empty_like(x, device=self.host.device, pin_memory=x.is_cuda).copy_(
                x, non_blocking=x.is_cuda
            )
        if x.is_cuda:
            stream = torch.cuda.current_stream(x.device)
            x.record_stream(stream)
            self.arriving.append(stream.record_event())
        return there

    def _arrive(self) -> None:
        """What is on its way has come."""
        arriving, self.arriving = self.arriving, []
        for event in arriving:
            event.synchronize()

    def _down(self, x: Tensor) -> Tensor:
        """A copy in the host's memory, all of it there."""
        there = self._coming(x)
        self._arrive()
        return there

    def take(self, p: Tensor, grad: Tensor) -> None:
        """The gradient of `p` comes down, and is added to one that is here already, in the masters' dtype."""
        if grad.layout is not torch.strided:
            raise ValueError(
                f"the gradient of a parameter of shape {tuple(p.shape)} is {grad.layout}: "
                "only dense ones are offloaded"
            )
        there, before = self._coming(grad), self.gradients.get(p)
        if before is not None:
            self._arrive()
        with self.host, torch.no_grad():
            self.gradients[p] = there if before is None else self._wide(before, p) + there

    def taken(self) -> tuple[dict[Tensor, Tensor], list]:
        """All gradients, and what is to be waited for before they are read; the next ones may come meanwhile."""
        found = self.gradients, self.arriving
        self.gradients, self.arriving = {}, []
        return found

    @torch.no_grad()
    def update(
        self, lane: Comm, gradients: dict[Tensor, Tensor], arriving: list, options: list[dict]
    ) -> None:
        """A step of the optimizer with these gradients (taken out of the dict) and these options of its groups."""
        for event in arriving:
            event.synchronize()
        with self.host:
            for group, given in zip(self.optimizer.param_groups, options, strict=True):
                group.update(given)
            updated = [p for p in self.masters if p in gradients]
            for p in updated:
                self.masters[p].grad = self._wide(gradients.pop(p), p)
            self.optimizer.step()
            for p in updated:
                self.masters[p].grad = None
            self.narrow(updated)

    def narrow(self, updated: list[Tensor]) -> None:
        """The masters of these parameters are their next values."""
        with self.host, torch.no_grad():
            self.fresh = {p: self._narrow(p) for p in updated}

    def _narrow(self, p: Tensor) -> Tensor:
        master = self.masters[p]
        if not p.is_cuda:
            return master.to(p.dtype)
        return torch.empty_like(master, dtype=p.dtype, pin_memory=True).copy_(master)

    @torch.no_grad()
    def up(self) -> None:
        """The next values of the parameters go to the device."""
        for p in list(self.fresh or ()):
            p.copy_(self.fresh.pop(p), non_blocking=p.is_cuda)
        self.fresh = None

    @torch.no_grad()
    def refresh(self) -> None:
        """The masters are the parameters, and nothing waits to go up."""
        self.fresh = None
        for p, master in self.masters.items():
            there = self._down(p.detach())
            with self.host:
                master.copy_(there)

    @torch.no_grad()
    def overtaken(self, p: Tensor) -> None:
        """Others have changed `p`: where it is no longer its rounded master, the master becomes it."""
        if self.fresh is not None:
            self.fresh.pop(p, None)
        there, master = self._down(p.detach()), self.masters[p]
        with self.host:
            master.copy_(torch.where(there == master.to(p.dtype), master, there.to(master.dtype)))
