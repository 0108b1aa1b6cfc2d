"""What a part of the model keeps of a micro-batch, from its forward to the end of its backward.

    F   leaves where the graph ends (not the outputs themselves: they may go when they are sent), and its inputs
    B   the graph backwards, whole
    I W the same in two, see `halves`

With recomputation F keeps its inputs and the surroundings (see `Replay`) only; backward runs F again, with the same
random numbers, and leaves running averages alone, which have counted this micro-batch already. Memory: the inputs
instead of the graph; FLOPs: one forward more. Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory
Cost", section 4; for pipelines Huang et al. 2019, "GPipe", section 2.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from ...train.remat import Replay, restoring
from .halves import Halves

Run = Callable[..., tuple[Tensor, ...]]


class Kept:
    """One micro-batch in one part. `run(*inputs)` gives the outputs; `outputs` are there until they are sent."""

    def __init__(self, run: Run, inputs: Sequence[Tensor]):
        self.inputs, self._halves = tuple(inputs), None
        self.outputs: tuple[Tensor, ...] = ()
        self._forward(run)

    def _forward(self, run: Run) -> None:
        self.outputs = run(*self.inputs)
        self.wanted = [y.requires_grad for y in self.outputs]  # a gradient
        self._ends(self.outputs)

    def _ends(self, outputs: Sequence[Tensor]) -> None:
        """Where the graph ends, for each output that wants a gradient."""
        pairs = zip(outputs, self.wanted, strict=True)
        self.ends = [
            get_gradient_edge(y) if y.requires_grad else None for y, wanted in pairs if wanted
        ]

    def backward(self, grads: Sequence[Tensor]) -> list[Tensor]:
        """Whole: gradients of the outputs that want one, to those of the inputs that do; parameters' accumulate."""
        ends, grads = self._matched(grads)
        if ends:
            torch.autograd.backward(ends, grads)
        return [
            torch.zeros_like(x) if x.grad is None else x.grad
            for x in self.inputs
            if x.requires_grad
        ]

    def input(self, grads: Sequence[Tensor]) -> list[Tensor]:
        """The inputs' gradients only."""
        ends, grads = self._matched(grads)
        mine = [x for x in self.inputs if x.requires_grad]
        self._halves = Halves(ends, mine)
        found = self._halves.input(grads)
        self.inputs, self.ends = (), []
        return [torch.zeros_like(x) if g is None else g for x, g in zip(mine, found, strict=True)]

    def weight(self) -> None:
        """The weights' gradients only, after `input`."""
        self._halves.weight()

    def _matched(self, grads: Sequence[Tensor]) -> tuple[list, list[Tensor]]:
        """Ends of the graph, and their gradients."""
        pairs = list(zip(self.ends, grads, strict=True))
        return [e for e, _ in pairs if e is not None], [g for e, g in pairs if e is not None]


class Recomputed(Kept):
    """The same; the graph is made in backward. `part`: the module whose parameters and buffers `run` uses."""

    def __init__(self, run: Run, inputs: Sequence[Tensor], part: nn.Module):
        self._run, self._part = run, part
        super().__init__(run, inputs)

    def _forward(self, run: Run) -> None:
        self._surroundings = Replay(self.inputs)
        with torch.no_grad():
            self.outputs = run(*self.inputs)
        may = any(x.requires_grad for x in (*self.inputs, *self._part.parameters()))
        self.wanted = [may and y.is_floating_point() for y in self.outputs]  # all that might

    def _matched(self, grads: Sequence[Tensor]) -> tuple[list, list[Tensor]]:
        with self._surroundings.again(), restoring():
            self._ends(self._run(*self.inputs))
        return super()._matched(grads)
