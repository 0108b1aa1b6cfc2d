"""What stands between a bucket of gradients and its average: one small interface for all ways to send less.

A `Compression` is handed a bucket in which each gradient is multiplied by this rank's share, 1/n or its weight, so that
the average is the sum over the ranks; it leaves that sum, or what it makes of it, in the bucket, the same on every rank
bit for bit. What it does not send it may keep, by the name of the parameter: so buckets may be laid out anew, and the
state can be saved. Error feedback (Seide et al. 2014, "1-Bit Stochastic Gradient Descent", section 3) is this rule:

    p = g + e      sent: c = C(p)      kept: e ← p − c      so that Σ_r (c_r + e_r) = Σ_r (g_r + e_r before)

Nothing is lost, it only comes later; without it a gradient that is always too small is never heard.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...collectives import all_reduce_
from ...comm.base import Comm

State = dict[str, dict[str, Any]]


class Compression(ABC):
    """An object for each model and each rank. `average_` is its interface with a bucket, all else has a default.

    first: None, or `first(comm, buckets, share)`, called in every backward before the first bucket, with all of them;
    share: what the gradients are still to be multiplied by, None for nothing.  progress: names of attributes, numbers,
    that are saved with the state.  On meta tensors every compression runs, and sends as many bytes.
    """

    first: Callable | None = None
    progress: tuple[str, ...] = ()

    def __init__(self):
        self._kept: State = {}  # by parameter; tensors and numbers

    @abstractmethod
    def average_(self, comm: Comm, bucket, algorithm: str | None) -> None:
        """Make the gradients of a bucket (parallel/compressed.py) their average. algorithm: of its all-reduces."""

    def of(self, name: str) -> dict[str, Any]:
        """What is kept of a parameter."""
        return self._kept.setdefault(name, {})

    def kept(self, name: str, what: str, x: Tensor) -> Tensor:
        """What is kept of a parameter in a tensor like `x`, at first zeros. ValueError if it is of another length."""
        state = self.of(name)
        if what not in state:
            state[what] = torch.zeros_like(x)
        if state[what].shape != x.shape:
            raise ValueError(
                f"{name} has {x.numel()} numbers, the loaded {what} {state[what].numel()}: "
                "this state is another model's"
            )
        return beside(x, state, what)

    def state_dict(self) -> dict[str, Any]:
        """What this rank keeps: {"kind", "progress": {…}, "parameters": {name: {what: tensor or number}}}.

        Ranks keep different things, so each saves its own. As with optimizers, the tensors are not copies.
        """
        return {
            "kind": type(self).__name__,
            "progress": {name: getattr(self, name) for name in self.progress},
            "parameters": self._kept,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where this rank's `state_dict` was called, bit for bit. ValueError for another kind of compression."""
        if state["kind"] != type(self).__name__:
            raise ValueError(
                f"this state was kept by {state['kind']}, {type(self).__name__} cannot go on from it"
            )
        self._kept = {
            name: {what: x.clone() if isinstance(x, Tensor) else x for what, x in of.items()}
            for name, of in state["parameters"].items()
        }
        for name in self.progress:
            setattr(self, name, state["progress"][name])


class Dense(Compression):
    """Everything, by an all-reduce: 2(n−1)/n·N bytes a rank. What `compression=None` does, with another bucket."""

    def average_(self, comm: Comm, bucket, algorithm: str | None) -> None:
        all_reduce_(comm, bucket.buffer, algorithm=algorithm)


class Lossy(Compression):
    """What the three that hold something back have in common: small tensors are averaged exactly, with the flags."""

    def average_(self, comm: Comm, bucket, algorithm: str | None) -> None:
        small = {name: flat(g) for name, g in bucket.views.items() if self.is_small(name, g)}
        all_reduce_(
            comm, [bucket.flags, *small.values()] if small else bucket.flags, algorithm=algorithm
        )
        there = bucket.there()
        self.begin(there)
        self.exact_({name: g for name, g in small.items() if name in there})
        rest = {name: g for name, g in bucket.views.items() if name in there and name not in small}
        if rest:
            self.compress_(comm, bucket.grads, rest, algorithm)

    def is_small(self, name: str, g: Tensor) -> bool:
        """Whether this gradient is sent as it is; the same on every rank."""
        return False

    def begin(self, names: set[str]) -> None:
        """A step of these parameters, of which some rank has a gradient, begins; which are small is decided."""

    def exact_(self, averages: dict[str, Tensor]) -> None:
        """What is still to be done with the averages, flat, of the small ones."""

    @abstractmethod
    def compress_(
        self, comm: Comm, grads: Tensor, views: dict[str, Tensor], algorithm: str | None
    ) -> None:
        """Make the gradients `views`, which lie in the flat `grads`, their average. Some rank has each of them."""


def beside(x: Tensor, state: dict[str, Any], what: str) -> Tensor:
    """`state[what]` on the device of `x`. What was loaded from a file is in the memory of the host, and moves once."""
    if state[what].device != x.device:
        state[what] = state[what].to(x.device)
    return state[what]


def flat(x: Tensor) -> Tensor:
    """The numbers of `x`, which fill one piece of memory, in the order of the memory: (N,), a view."""
    return x.as_strided((x.numel(),), (1,))
