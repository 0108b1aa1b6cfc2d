"""What a program allocates and frees, in order: the input of the simulated allocator.

A dispatch mode sees every operator's result. A storage that is new was allocated; when the last tensor of it dies, it
is freed. So the order is the real one, on any device and on "meta" for models that no memory here would hold.
What an operator takes and gives back within itself is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minidist.comm.costs import called, operator
from minidist.study.memory.allocator import Allocator, Block

BEFORE = "there before"


@dataclass(frozen=True)
class Event:
    """Tensor number `tensor` takes `nbytes` bytes, or frees them where `nbytes` is 0. `operator` made it."""

    tensor: int
    nbytes: int
    operator: str


class Recording:
    """Events in order. `lasting`: the numbers of tensors that nobody freed. `peak`: most bytes alive at once."""

    def __init__(self, events: list[Event]):
        self.events = events
        made = {e.tensor for e in events if e.nbytes}
        self.lasting = made - {e.tensor for e in events if not e.nbytes}

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    @property
    def peak(self) -> int:
        alive = {}
        now = 0
        most = 0
        for e in self.events:
            now += e.nbytes - (0 if e.nbytes else alive.pop(e.tensor))
            if e.nbytes:
                alive[e.tensor] = e.nbytes
            most = max(most, now)
        return most


class _Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.events: list[Event] = []
        self.alive: dict[int, int] = {}  # storage -> tensor number
        self.count, self.on = 0, True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = called(operator(func), func, args, kwargs or {})
        self.see(tree_leaves(out), str(func))
        return out

    def see(self, leaves: Iterable, operator: str) -> None:
        for tensor in leaves:
            storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else None
            if storage is None or not storage.nbytes() or storage._cdata in self.alive:
                continue
            self.count += 1
            self.alive[storage._cdata] = self.count
            self.events.append(Event(self.count, storage.nbytes(), operator))
            weakref.finalize(storage, self.gone, storage._cdata, self.count).atexit = False

    def gone(self, key: int, tensor: int) -> None:
        del self.alive[key]
        if self.on:
            self.events.append(Event(tensor, 0, "free"))


def record(fn: Callable, *args, there: Iterable[Tensor] = ()) -> Recording:
    """Run `fn(*args)` and record what it allocates and frees, forward and backward.

    there: tensors that live before, a model's parameters say: they are allocated first. They and the result of `fn`
    outlive the recording.
    """
    recorder = _Recorder()
    recorder.see(there, BEFORE)
    with recorder:
        result = fn(*args)
    recorder.on = False
    del result
    return Recording(recorder.events)


def replay(recording: Recording, memory: Allocator) -> dict[int, Block]:
    """Allocate and free in the recorded order. Returns the blocks of tensors that are still alive.

    Blocks are labelled "there before", "long-lived" or "short-lived", the last if their tensor dies in the recording.
    Raises OutOfMemory where the allocator does, which is then as it was at that moment.
    """
    blocks: dict[int, Block] = {}
    for e in recording:
        if e.nbytes:
            kind = "long-lived" if e.tensor in recording.lasting else "short-lived"
            blocks[e.tensor] = memory.malloc(e.nbytes, BEFORE if e.operator == BEFORE else kind)
        else:
            memory.free(blocks.pop(e.tensor))
    return blocks
