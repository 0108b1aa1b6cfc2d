"""Gradients in one flat buffer, without a copy at the step.

Problem: after `zero_grad()` autograd makes each gradient anew, wherever there is memory. To bring them together at the
step reads all of them again, from memory, and for that moment there are two of each. Idea: on a CPU a hook copies each
gradient as soon as it is complete, while it is in the cache, and makes its slot in the buffer `p.grad`:

    backward     w3.grad ─copy─▶ slot 3, freed   w2.grad ─copy─▶ slot 2, freed   …      step     nothing to gather

Elsewhere a launch costs more than a copy, and one launch gathers all at the step. Cost: 2N either way.
Invariants: gradients are None after `zero_grad()`, and a backward overwrites nothing that anybody still holds: a slot
is filled again only if the gradients of today alone are in the buffer's memory, else there is a new buffer.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from .steps import gather_


class Slots:
    """The gradients of `params`, of one dtype and device. buffer: (N,), or None before the first one."""

    def __init__(self, params: list[Tensor]):
        ends = accumulate((p.numel() for p in params), initial=0)
        self.place = dict(zip(params, pairwise(ends), strict=True))
        self.buffer: Tensor | None = None
        self._watched: set[Tensor] = set()
        fresh = torch.nn.Parameter(torch.empty(0))
        fresh.grad = torch.empty(0)
        self._alone = _holders(fresh)
        self._lent: set[Tensor] = set()  # parameters that have got their slot since the last look

    def watch(self) -> None:
        """From now on the gradients of a CPU go to their slots in backward; also of what was frozen until now."""
        for p in self.place:
            if p.is_cpu and p.requires_grad and p not in self._watched:
                self._watched.add(p)
                p.register_post_accumulate_grad_hook(_taking(weakref.ref(self)))

    def slot(self, p: Tensor) -> Tensor:
        """The part of the buffer that belongs to `p`, in its shape."""
        first, end = self.place[p]
        return self.buffer[first:end].view(p.shape)

    def _has(self, p: Tensor) -> bool:
        """Whether the gradient of `p` is in the buffer."""
        there = self.buffer is not None and p.grad is not None and p.grad.layout is torch.strided
        return there and p.grad.untyped_storage()._cdata == self.buffer.untyped_storage()._cdata

    @torch.no_grad()
    def take(self, p: Tensor) -> None:
        """Move the gradient of `p` to its slot, unless it has a graph, cannot lie there, or is in another's buffer."""
        if (
            p.grad is None
            or p.grad.requires_grad
            or (p.grad.layout, p.grad.dtype) != (torch.strided, p.dtype)
        ):
            return
        # in our own already, in a bucket that is about to be averaged, or the program's
        if _holders(p) != self._alone:
            return
        self._free([p])
        p.grad = self.slot(p).copy_(p.grad)
        self._lent.add(p)

    def gather_(self) -> None:
        """Move all gradients that are not in their slots there: no launch if there are none, else one."""
        self._free([p for p in self.place if p.grad is not None and not self._has(p)])
        # more of them in a new buffer
        away = [p for p in self.place if p.grad is not None and not self._has(p)]
        if away:
            gather_(self.buffer, [p.grad for p in away], [self.place[p][0] for p in away])
        for p in away:
            p.grad = self.slot(p)
        self._lent.update(away)

    def _free(self, wanted: list[Tensor]) -> None:
        """See that the slots of these parameters may be filled; there is a buffer afterwards."""
        if self.buffer is not None and not self._lent.isdisjoint(wanted):
            self._look()
        if self.buffer is None:
            like = next(iter(self.place))
            self.buffer, self._lent = like.new_empty(sum(p.numel() for p in self.place)), set()

    def _look(self) -> None:
        """Leave the buffer to those who hold parts of it, if these are not gradients of today."""
        self._lent = {p for p in self.place if self._has(p)}
        if _uses(self.buffer) > self._alone[0] + len(self._lent):
            self.buffer = None

    def drop(self) -> None:
        """No parameter has a gradient."""
        for p in self.place:
            p.grad = None
        if self._watched and self.buffer is not None:
            self._look()
        else:
            self.buffer = None


def _taking(slots: weakref.ref) -> Callable[[Tensor], None]:
    """A hook of a parameter, which dies with the slots."""

    def hook(p: Tensor) -> None:
        if (own := slots()) is not None and p in own.place:
            own.take(p)

    return hook


def _holders(p: Tensor) -> tuple[int, int]:
    """Of the gradient of `p`: how many tensors share its memory, how many variables of the program are this tensor."""
    grad = p.grad
    return _uses(grad), sys.getrefcount(grad)


def _uses(x: Tensor) -> int:
    """How many hold the memory of `x`: tensors that share it, whoever has them."""
    return torch._C._storage_Use_Count(x.untyped_storage()._cdata)
