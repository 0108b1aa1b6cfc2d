"""One call of a function, kept so that it can be repeated: its operands, its surroundings, what it changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from .aside import Buffers, aside
from .replay import Replay


class Call:
    """`fn(*inputs, **kwargs)`: `first()` makes it, `again(tensors)` repeats it as it was, with a graph.

    tensors: those among the operands, also within lists, tuples and dicts. The one who keeps them for `again` is the
    caller, in autograd's way; the call itself lets go of them once it was made.
    """

    def __init__(self, fn: Callable, inputs: tuple, kwargs: dict):
        self.fn, self._changed = fn, []
        self._leaves, self._spec = tree_flatten((inputs, kwargs))
        self._places = [i for i, value in enumerate(self._leaves) if isinstance(value, Tensor)]
        self.tensors = [self._leaves[i] for i in self._places]
        self._replay = Replay(self._leaves)

    def first(self, tensors: Sequence[Tensor] | None = None) -> Any:
        """The outputs; of `tensors` if they are given, the same ones as autograd handed them on."""
        tensors, self.tensors = self.tensors if tensors is None else tensors, []
        for i in self._places:
            self._leaves[i] = None
        buffers = Buffers(self.fn)
        outputs = self._run(tensors)
        self._changed = buffers.changed()
        return outputs

    def again(self, tensors: Sequence[Tensor]) -> Any:
        """The outputs once more."""
        with self._replay.again(), aside(self._changed), torch.enable_grad():
            return self._run(tensors)

    def _run(self, tensors: Sequence[Tensor]) -> Any:
        leaves = self._leaves.copy()
        for i, x in zip(self._places, tensors, strict=True):
            leaves[i] = x
        inputs, kwargs = tree_unflatten(leaves, self._spec)
        return self.fn(*inputs, **kwargs)
