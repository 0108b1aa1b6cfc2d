"""Hooks: the gradients of a backward are handed to a `Reducer` as they come, and its end finishes them.

    AccumulateGrad of p:   _before(p)  ·  p.grad += increment  ·  _has_gradient(p)  → reducer.ready(p)
    the backward ends:     _ended      → average() → reducer.finish()

`register_hook` sees the increment, before it is added; `register_post_accumulate_grad_hook` is called when it has
been. Li et al. 2020, "PyTorch Distributed", sections 3.2.3 and 3.2.4 (no_sync).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from contextlib import contextmanager

import torch
from torch import Tensor

from .reducer import Reducer


class Backwards:
    """Follows backwards with `_reducer`. A class with this one says in `_begin` what the reducer begins with, and has a
    `_claim` on its parameters, which lets go by `_unwatch`."""

    def _follow(self, reducer: Reducer, averages: bool = True) -> None:
        self._reducer = reducer
        self._averages = averages
        self._backward = None
        self._watched = {}

    @contextmanager
    def no_sync(self):
        """A `backward()` in here only accumulates; the next one outside averages the total.

        For k micro-batches of equal size divide each loss by k, and leave the last one outside.
        """
        self._claim.check()
        before, self._averages = self._averages, False
        try:
            yield
        finally:
            self._averages = before

    def average(self) -> None:
        """What the end of a backward does: average what is not averaged yet of the gradients that every rank holds.

        Called twice it changes nothing more: equal gradients are their own average. So a gradient
        that was averaged, and then accumulated into, comes out right.
        """
        self._claim.check()
        if not self._reducer.active:
            self._begin()
        self._reducer.finish()

    def _begin(self) -> None:
        raise NotImplementedError

    def _watch(self, params: Iterable[Tensor]) -> None:
        """Hear of the gradients of these parameters, also of those that were frozen before."""
        for p in params:
            if p.requires_grad and p not in self._watched:
                after = p.register_post_accumulate_grad_hook(self._has_gradient)
                self._watched[p] = p.register_hook(functools.partial(self._before, p)), after

    def _unwatch(self) -> None:
        """Hear of no gradient any more."""
        for handles in self._watched.values():
            for handle in handles:
                handle.remove()
        self._watched = {}

    def _before(self, p: Tensor, increment: Tensor) -> None:
        """Finish a backward before the next adds to buckets that are being sent: around this one (reentrant
        checkpointing), or one that raised."""
        if self._reducer.active and _backward_now() != self._backward:
            self.average()

    def _has_gradient(self, p: Tensor) -> None:
        """A gradient is there. The first one of a backward asks autograd for a call when this backward ends."""
        if not self._averages:
            return
        if not self._reducer.active:
            self._backward = _backward_now()
            torch.autograd.Variable._execution_engine.queue_callback(self._ended)
            self._begin()
        self._reducer.ready(p)

    def _ended(self) -> None:
        if self._reducer.active:  # not if a backward within it came last
            self.average()


def _backward_now() -> int:
    """A number for the backward that runs in this thread, -1 outside. Autograd has no public name for it."""
    return torch._C._current_graph_task_id()
