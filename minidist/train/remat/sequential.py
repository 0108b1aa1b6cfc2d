"""A chain of L layers in about √L segments, or by a plan, or by halves.

    segments      held: one input a segment, and the saved tensors of one of them:  (k − 1)·x + L/k·a  bytes
                  with k = √(L·a/x) that is 2√(L·a·x) − x; about √L layers' worth, for less than one forward more
    halves        the first half is repeated, within it the first half of that, …: log₂ L inputs and one layer's
                  saved tensors, for L/2·log₂ L layers' forwards more
    a plan        see `plan`

x: bytes between layers; a: bytes that a layer keeps, its input included. The last segment is kept as it is: its
backward comes at once, so to repeat it saves nothing. Source: Chen et al. 2016, sections 4.1, 4.3 and 4.4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...split import bounds, uneven
from .checkpoint import checkpoint
from .plan import Plan


def checkpoint_sequential(
    functions: Sequence[Callable], segments: int | Plan | None, x: Any
) -> Any:
    """`x` through all functions one after the other, as `nn.Sequential` does, with checkpoints.

    functions: nn.Sequential or a list; each takes what the one before it gives.  segments: how many, as equal as can
    be, all but the last checkpointed; None: about √L; a Plan: as it says.
    Raises ValueError for more segments than functions, fewer than one, and a plan of another number of layers.
    """
    functions = list(functions)
    for first, end, again in _cuts(len(functions), segments):
        part = functions[first:end]
        x = checkpoint(run, part, x) if again else run(part, x)
    return x


def checkpoint_recursive(functions: Sequence[Callable], x: Any) -> Any:
    """The same by halves: the first half is checkpointed, and both are done likewise within."""
    functions = list(functions)
    if len(functions) <= 1:
        return run(functions, x)
    half = (len(functions) + 1) // 2
    x = checkpoint(checkpoint_recursive, functions[:half], x)
    return checkpoint_recursive(functions[half:], x)


def run(functions: Sequence[Callable], x: Any) -> Any:
    """`x` through all functions, one after the other."""
    for function in functions:
        x = function(x)
    return x


def _cuts(layers: int, segments: int | Plan | None) -> list[tuple[int, int, bool]]:
    if isinstance(segments, Plan):
        planned = segments.segments[-1].end if segments.segments else 0
        if planned != layers:
            raise ValueError(f"the plan is for {planned} layers, there are {layers}")
        return list(segments.segments)
    k = max(1, round(layers**0.5)) if segments is None else segments
    if not 1 <= k <= max(1, layers):
        raise ValueError(f"{layers} functions do not split into {k} segments")
    cuts = bounds(uneven(layers, k))
    return [(first, end, i < k - 1) for i, (first, end) in enumerate(cuts)]
