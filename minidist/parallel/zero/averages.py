"""Which gradients are averages already, so that a backward which adds to one of them is told from its average.

A gradient that was averaged lives at its owner alone. If the next backward added its increment there, the next average
would take the old average for one rank's part of n. So it is set aside before the increment comes, and added after:

    p.grad   avg 1 ── set aside ──▶ None ── backward ──▶ g2 ── reduced to the owner ──▶ avg 2 ──▶ avg 1 + avg 2
    held              avg 1                                                            ──────────┘
"""

from __future__ import annotations

import weakref

from torch import Tensor


class Averages:
    """Of the parameters that this rank owns."""

    def __init__(self):
        # Weak: a gradient that the user drops is gone. While it is somebody's .grad its Python object lives, too.
        self._made: weakref.WeakValueDictionary[Tensor, Tensor] = weakref.WeakValueDictionary()
        self._held: dict[Tensor, Tensor] = {}

    def set_aside(self, p: Tensor) -> None:
        """Leave in `p.grad` only what is not averaged yet."""
        if p.grad is None:
            self._held.pop(p, None)  # it was dropped in between, as `module.zero_grad()` does
        elif p.grad is self._made.get(p):
            self._held[p], p.grad = p.grad, None

    def give(self, p: Tensor, average: Tensor | None) -> None:
        """Add `average` (None: there is none) to what was set aside, as the gradient of `p`."""
        held = self._held.pop(p, None)
        if held is not None:
            average = held if average is None else held.add_(average)
        p.grad = average
        if average is not None:
            self._made[p] = average

    def forget(self) -> None:
        """Drop what is set aside."""
        self._held.clear()
