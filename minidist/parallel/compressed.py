"""A bucket whose average a compression makes: what it is handed, and what keeps lossy averages from mixing.

An all-reduce may take an average for a gradient: equal gradients are their own average. A lossy one may not: it would
send a second time what it has sent, and add a second time what it holds back. So what was averaged is set aside
before the next increment comes, and added after (see zero/averages.py).

    p.grad   avg 1 ── set aside ──▶ None ── backward ──▶ g2 ── compressed, averaged ──▶ avg 2 ──▶ avg 1 + avg 2

A gradient that no rank has is not compressed at all: what is held back of it waits until there is one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..comm.base import Comm
from .buckets import Bucket
from .zero.averages import Averages


class Copies(Averages):
    """Averages lie in the memory of a bucket, into which the next ones are written: those set aside are copies."""

    def set_aside(self, p: Tensor) -> None:
        before = self._held.get(p)
        super().set_aside(p)
        held = self._held.get(p)
        if held is not None and held is not before:
            self._held[p] = held.clone()


class CompressedBucket(Bucket):
    """A `Bucket` that `compression.average_(comm, bucket, algorithm)` averages. names: of the parameters.

    For it, besides `buffer`, `grads` and `flags`:  views: the gradients by name, in `grads`, each this rank's times its
    share, to become the sum over the ranks.  there(): the names of those that some rank has, once `flags` are summed.
    """

    def __init__(
        self, params: Sequence[Tensor], names: Sequence[str], compression, averages: Averages
    ):
        super().__init__(params)
        self._compression, self._averages = compression, averages
        self.views = {name: self._views[p] for name, p in zip(names, self.params, strict=True)}

    def put(self, p: Tensor, factor: float) -> None:
        self._averages.set_aside(p)
        super().put(p, factor)

    @torch.no_grad()
    def reduce(self, comm: Comm, part: Tensor | float | None, algorithm: str | None) -> None:
        if part is not None:
            self.grads.mul_(part)
        self._compression.average_(comm, self, algorithm)

    def there(self) -> set[str]:
        """Meta flags cannot be read: there all are."""
        if not self._absent or self.buffer.is_meta:
            return set(self.views)
        return {name for name, ranks in zip(self.views, self.flags.tolist(), strict=True) if ranks}

    def hand_out(self) -> None:
        super().hand_out()
        for p in self.params:
            self._averages.give(p, p.grad)
