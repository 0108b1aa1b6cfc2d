"""Running averages count a batch once, though its forward runs twice.

Batch norm changes its buffers in every forward in training mode, so also in the one that backward repeats: each batch
would count twice, and evaluation would see other averages than without checkpointing. Which buffers a forward has
changed is seen by their version counters, module by module, as PyTorch's batch norm counts for its number of batches
only. While the forward is repeated, the buffers of these modules are copies that are thrown away.

Found are the buffers of the modules that a function is, is bound to, or holds: by `functools.partial`, in its closure,
in the globals that it names, and in lists of these.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CellType, FunctionType, MethodType

from torch import Tensor, nn

EMPTY = CellType()  # of a name that has no value yet


class Buffers:
    """The buffers that `fn` may change, as they are now."""

    def __init__(self, fn: Callable):
        own = (m for module in modules(fn) for m in module.modules() if m._buffers)
        self._now = [
            (buffers, [b._version for b in buffers])
            for m in own
            if (buffers := [*m.buffers(recurse=False)])
        ]

    def changed(self) -> list[Tensor]:
        """Those of the modules of which one was changed in place since."""
        return [
            b
            for buffers, versions in self._now
            if [b._version for b in buffers] != versions
            for b in buffers
        ]


@contextmanager
def aside(buffers: Iterable[Tensor]) -> Iterator[None]:
    """What is changed in these buffers in here is forgotten."""
    held = [(buffer, buffer.data) for buffer in buffers]
    for buffer, data in held:
        buffer.data = data.clone()
    try:
        yield
    finally:
        for buffer, data in held:
            buffer.data = data


def modules(fn) -> list[nn.Module]:
    """The modules that `fn` is, is bound to, or holds."""
    if isinstance(fn, FunctionType):
        cells = [cell.cell_contents for cell in fn.__closure__ or () if cell != EMPTY]
        named = [fn.__globals__[name] for name in fn.__code__.co_names if name in fn.__globals__]
        return [
            m
            for value in (*cells, *named)
            if not isinstance(value, FunctionType)
            for m in modules(value)
        ]
    if isinstance(fn, functools.partial):
        return [m for value in (fn.func, *fn.args, *fn.keywords.values()) for m in modules(value)]
    if isinstance(fn, MethodType):
        return modules(fn.__self__)
    if isinstance(fn, (list, tuple)):
        return [m for value in fn for m in modules(value)]
    return [fn] if isinstance(fn, nn.Module) else []
