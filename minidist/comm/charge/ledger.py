"""The live memory of a rank, by category, without a call in the program.

A `Charge` shows the ledger every operator's operands and results. Each *storage* is counted once, however many
tensors view it, from its birth (or from the start, if it is first seen as an operand) until it dies or is resized.
What it is for becomes known later, and then holds for its whole life:

    parameters        an nn.Parameter, or what a torch.optim.Optimizer steps and requires grad
    gradients         of parameters: what autograd accumulates, what is in p.grad
    optimizer states  in the `state` of an Optimizer, also of a class derived from it
    activations       made before backward (or recomputed in it) and read by it: what was saved for it
    buffers           of an nn.Module                other   temporary results, output gradients, batches

Saved tensors are recognized as backward reads them: torch's hooks for them switch off its check that none was
changed since. So what forward keeps for a backward that never comes is "other". Source: ZeRO, 2020, section 3.
"""

from __future__ import annotations

import math
import weakref
from array import array
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..trace.timeline import CATEGORIES, Timeline

PARAMETERS, GRADIENTS, STATES, ACTIVATIONS, BUFFERS, OTHER = range(len(CATEGORIES))
# the strongest claim to a storage holds: a buffer that backward reads is a buffer
STRENGTH = (5, 4, 3, 1, 2, 0)
HOST = "host"  # the name of its memory, beside the types of torch's devices
AT_START = -math.inf  # of what is first seen as an operand: before all that is known


class _Held(weakref.ref):
    """A live storage: `index` is its row in the ledger, `key` its address, `forward` that no backward made it."""

    __slots__ = ("born", "forward", "index", "key", "nbytes")


class Ledger:
    """The storages of a rank; `now()` is its time in seconds."""

    def __init__(self, now: Callable[[], float]):
        self._now = now
        self._live: dict[int, _Held] = {}
        self._category, self._device = bytearray(), bytearray()  # of each storage
        self._devices: dict[str, int] = {}
        # of each change
        self._times = array("d")
        self._which = array("q")
        self._change = array("q")
        self._accumulated: tuple | None = None
        self._open = True
        self.hosted = False  # whether anything has lain in the host's memory
        self.copied = [0, 0]  # bytes from the device to the host, and back

    def existing(self, value, seen: set[int] | None = None) -> None:
        """Count the tensors, modules and optimizers in `value`, and in containers within it, from time 0."""
        seen = set() if seen is None else seen
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, Tensor):
            self.claim(value, PARAMETERS if isinstance(value, nn.Parameter) else OTHER, 0.0)
            self._gradient(value)
        elif isinstance(value, nn.Module):
            for buffer in value.buffers():
                self.claim(buffer, BUFFERS, 0.0)
            for p in value.parameters():
                self.existing(p, seen)
        elif isinstance(value, torch.optim.Optimizer):
            self.stepped(value, 0.0)
            for inner in vars(value).values():  # what it wraps steps copies of the weights
                if isinstance(inner, torch.optim.Optimizer):
                    self.existing(inner, seen)
        elif isinstance(value, (dict, list, tuple, set, frozenset)):
            for item in value.values() if isinstance(value, dict) else value:
                self.existing(item, seen)

    def on_host(self, x: Tensor, new: bool) -> bool:
        """Whether `x` lies in the host's memory; `new` is the answer for one that has not been seen."""
        held = self._live.get(x.untyped_storage()._cdata)
        return new if held is None else self._device[held.index] == self._devices.get(HOST)

    def saw(
        self,
        read: list[Tensor],
        written: list[Tensor],
        start: float,
        name: str = "",
        host: bool = False,
        nothing_new: bool = False,
    ) -> None:
        """An operator that began at `start` has read and written, or given, these dense tensors.

        host: what it gave is in the host's memory.  nothing_new: it gave no memory that it had not read."""
        if not self._open:
            return
        node = torch._C._current_autograd_node()
        accumulates = node is not None and type(node).__name__ == "AccumulateGrad"
        forward = node is None or torch.is_grad_enabled()
        for x in read:
            fresh = host and name == "lift_fresh"  # torch.tensor(…): the first that is seen of it
            held = self._hold(x, AT_START if name != "set_" else start, True, fresh)
            if type(x) is not Tensor and isinstance(x, nn.Parameter):
                self._claim(held, PARAMETERS)
                self._gradient(x)
            elif held.forward and not forward and not accumulates:
                self._claim(held, ACTIVATIONS)
        if not nothing_new:
            for x in written:
                self._hold(x, start, forward, host)
        if accumulates:
            self._accumulates(node.variable, written)

    def claim(self, x: Tensor, category: int, since: float | None = None) -> None:
        """`x` belongs to `category`. If it has not been seen it is there since `since` seconds, or now."""
        if self._open and x.layout is torch.strided:
            self._claim(self._hold(x, self._now() if since is None else since, True), category)

    def stepped(self, optimizer: torch.optim.Optimizer, since: float | None = None) -> None:
        """Find the states of an optimizer."""
        for value in [v for state in optimizer.state.values() for v in _values(state)]:
            if isinstance(value, Tensor):
                self.claim(value, STATES, since)
        for p in [p for group in optimizer.param_groups for p in group["params"]]:
            # an fp32 copy of the weights is a state
            self.claim(p, PARAMETERS if p.requires_grad else STATES, since)
            self._gradient(p)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """The storage may have another size now."""
        held = self._live.get(storage._cdata)
        if held is not None and held.nbytes != storage.nbytes():
            self._changed(self._now(), held.index, storage.nbytes() - held.nbytes)
            held.nbytes = storage.nbytes()

    def close(self) -> None:
        """Nothing is recorded from now on: the program is over."""
        self._live.clear()
        self._open = False

    def __bool__(self) -> bool:
        """Whether it has ever held anything."""
        return bool(self._category)

    def timeline(self, device: str | None = None) -> Timeline:
        """Live bytes on devices of this type ("cpu", "meta", "cuda"), or on the `HOST`; None: on the type with the
        highest peak."""
        columns = self._times, self._change, self._which, self._category, self._device
        wanted = [device] if device else self._devices.keys() - {HOST}
        found = [
            Timeline.of(*columns, name, code)
            for name, code in self._devices.items()
            if name in wanted
        ]
        return max(
            found, key=lambda timeline: timeline.peak, default=Timeline([], [], [], device or "cpu")
        )

    def _hold(self, x: Tensor, born: float, forward: bool, host: bool = False) -> _Held:
        storage = x.untyped_storage()
        key = storage._cdata
        held = self._live.get(key)
        if held is None:
            return self._enter(storage, key, HOST if host else x.device.type, born, forward)
        if held.nbytes != storage.nbytes():
            self.resized(storage)
        return held

    def _enter(self, storage, key: int, device: str, born: float, forward: bool) -> _Held:
        if born == AT_START and not storage.resizable():
            born = self._now()  # not torch's own memory (numpy's, a file's): held since it is used
        held = self._live[key] = _Held(storage, self._died)
        held.key = key
        held.index = len(self._category)
        held.nbytes = storage.nbytes()
        held.born, held.forward = born, forward
        self.hosted |= device == HOST
        self._category.append(OTHER)
        self._device.append(self._devices.setdefault(device, len(self._devices)))
        self._changed(born, held.index, held.nbytes)
        return held

    def _died(self, held: _Held) -> None:
        if self._live.get(held.key) is held:
            del self._live[held.key]
            # The collector may find it while another rank runs, whose time is another.
            self._changed(max(self._now(), held.born), held.index, -held.nbytes)

    def _changed(self, time: float, index: int, nbytes: int) -> None:
        self._times.append(time)
        self._which.append(index)
        self._change.append(nbytes)

    def _claim(self, held: _Held, category: int) -> None:
        if STRENGTH[category] > STRENGTH[self._category[held.index]]:
            self._category[held.index] = category

    def _gradient(self, leaf: Tensor) -> None:
        grad = leaf.grad if leaf.is_leaf else None
        if grad is not None:
            self.claim(grad, GRADIENTS, AT_START)

    def _accumulates(self, leaf: Tensor, written: list[Tensor]) -> None:
        """Autograd adds to the gradient of `leaf`, or steals or copies the first one; then come the user's hooks."""
        if self._category[self._hold(leaf, AT_START, True).index] != PARAMETERS:
            return  # the input of a pipeline's stage, say
        backward = torch._C._current_graph_task_id(), id(leaf)
        if leaf.grad is not None:
            self.claim(leaf.grad, GRADIENTS)
        elif backward != self._accumulated:
            for x in written:
                self.claim(x, GRADIENTS)
        self._accumulated = backward


def _values(state):
    """Everything in a state: a tensor, a number, or containers of them."""
    if isinstance(state, dict):
        return [v for value in state.values() for v in _values(value)]
    if isinstance(state, (list, tuple)):
        return [v for value in state for v in _values(value)]
    return [state]
