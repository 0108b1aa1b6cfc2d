"""The meter: time and memory of what ranks compute, without a call in the program.

    operator ──▶ Charge ──▶ Cost (FLOPs, bytes) ──▶ roofline: seconds on the fiber's clock, a span in the trace
                   └──────▶ Ledger: which storages were born, what they are for, when they die

A `Charge` is a dispatch mode: below autograd it sees every aten operator that its thread runs, forward, backward (which
autograd runs in the rank's own thread) and the optimizer's step, on real and on meta tensors. A `Ledger` follows the
live bytes of a rank by category. `Watch` hears what no operator tells, and `Meter` has all of it for a World's run.
Sources: Williams et al. 2009, the roofline model; ZeRO, 2020, section 3, the categories of memory.
"""

from __future__ import annotations

import functools
import math
import weakref
from array import array
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from .base import Host
from .clock import Clock, Fiber
from .cluster import Cluster, Device, HostPart
from .costs import Cost, FusedAttention, Operator, Product, Results, operator, stored
from .trace import CATEGORIES, OnHost, Timeline, Trace

# ------------------------------------------------------------
# The live memory of a rank, by category, without a call in the program.
#
# A `Charge` shows the ledger every operator's operands and results. Each *storage* is counted once, however many
# tensors view it, from its birth (or from the start, if it is first seen as an operand) until it dies or is resized.
# What it is for becomes known later, and then holds for its whole life:
#
#     parameters        an nn.Parameter, or what a torch.optim.Optimizer steps and requires grad
#     gradients         of parameters: what autograd accumulates, what is in p.grad
#     optimizer states  in the `state` of an Optimizer, also of a class derived from it
#     activations       made before backward (or recomputed in it) and read by it: what was saved for it
#     buffers           of an nn.Module                other   temporary results, output gradients, batches
#
# On the device "meta" a serial model is only a form, from which each rank makes its part: a parameter there that is gone
# before any operator has read it was never memory, and is not counted.
#
# Saved tensors are recognized as backward reads them: torch's hooks for them switch off its check that none was
# changed since. So what forward keeps for a backward that never comes is "other". Source: ZeRO, 2020, section 3.


PARAMETERS, GRADIENTS, STATES, ACTIVATIONS, BUFFERS, OTHER = range(len(CATEGORIES))
# the strongest claim to a storage holds: a buffer that backward reads is a buffer
STRENGTH = (5, 4, 3, 1, 2, 0)
HOST = "host"  # the name of its memory, beside the types of torch's devices
AT_START = -math.inf  # of what is first seen as an operand: before all that is known
_NOWHERE = 255  # in place of a device's number: of what was only a form


class _Held(weakref.ref):
    """A live storage: `index` is its row in the ledger, `key` its address, `forward` that no backward made it, `form`
    that it is on "meta", and no operator has read it."""

    __slots__ = ("born", "form", "forward", "index", "key", "nbytes")
    born: float
    form: bool
    forward: bool
    index: int
    key: int
    nbytes: int


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
        self.open = True
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
        if not self.open:
            return
        node: Any = torch._C._current_autograd_node()
        accumulates = node is not None and type(node).__name__ == "AccumulateGrad"
        forward = node is None or torch.is_grad_enabled()
        for x in read:
            fresh = host and name == "lift_fresh"  # torch.tensor(…): the first that is seen of it
            held = self._hold(x, AT_START if name != "set_" else start, True, fresh)
            held.form = False
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
        if self.open and x.layout is torch.strided:
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
        self.open = False

    def __bool__(self) -> bool:
        """Whether it has ever held anything."""
        return bool(self._category)

    def timeline(self, device: str | None = None) -> Timeline:
        """Live bytes on devices of this type ("cpu", "meta", "cuda"), or on the `HOST`; None: on the type with the
        highest peak."""
        times, changes, which = map(np.array, (self._times, self._change, self._which))
        category, devices = np.array(self._category), np.array(self._device)
        found = []
        for name, code in self._devices.items():
            if name == device or (device is None and name != HOST):
                there = np.flatnonzero(devices[which] == code)
                # what was there before comes first
                there = there[np.argsort(times[there], kind="stable")]
                since = np.maximum(times[there], 0.0)
                found.append(Timeline(since, changes[there], category[which[there]], name))
        nothing = Timeline([], [], [], device or "cpu")
        return max(found, key=lambda timeline: timeline.peak, default=nothing)

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
        held.form = device == "meta"
        self.hosted |= device == HOST
        self._category.append(OTHER)
        self._device.append(self._devices.setdefault(device, len(self._devices)))
        self._changed(born, held.index, held.nbytes)
        return held

    def _died(self, held: _Held) -> None:
        if self._live.get(held.key) is held:
            del self._live[held.key]
            if held.form and self._category[held.index] == PARAMETERS:
                self._device[held.index] = _NOWHERE
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


# ------------------------------------------------------------
# How operators are seen and charged: the seconds that each takes on the device, added to the time of the fiber that runs
# it: its launch, and what `Device` says of products, of fused attention, and of all else by its bytes; times the rank's
# slowness. These are the functions and constants that the planner uses, too: where a device has no efficiency, what it
# reaches is all of its data sheet.
#
# Views and allocations take no time. Each lane has a Charge of its own: what a stream computes takes the lane's time, so
# streams overlap. What runs on another kind of device (a CPU tensor beside a GPU's) is free. What lies in the memory
# of a `ModelledHost` runs there; a copy to or from it takes the host's link, as long as one alone would take.


_type = cache(attrgetter("type"))  # of a device: torch makes the word anew each time
COPIES = {"copy_", "_to_copy", "clone"}  # what may have operands on the host and on the device


def roofline(device: Device, cost: Cost) -> float:
    """Seconds that a call takes on `device`. Raises ValueError if it has no peak for the dtype of a product."""
    sizes = cost.sizes
    if isinstance(sizes, Product):
        compute = device.product(*sizes, cost.dtype)
    elif isinstance(sizes, FusedAttention):
        heads, queries, keys, d, causal, backward = sizes
        compute = device.fused_attention(heads, queries, keys, d, cost.dtype, causal, backward)
    else:
        compute = device.computing(cost.flops, cost.dtype)
    return device.launch + max(compute, device.moving(cost.nbytes))


class Charge(TorchDispatchMode):
    """Charges the operators of one thread to `clock.time`, in seconds.

    seconds(cost): of a call; None charges no time.  where: the type of device that is charged ("cpu", "meta",
    "cuda"); None: all.  note(operator, cost, start, end): called for each operator charged.
    host_seconds(cost, copied): seconds of an operator of the host, or of a copy to or from it; None: they are free.
    results: of operators on meta tensors, where several Charges share them.
    """

    def __init__(
        self,
        clock,
        ledger: Ledger,
        seconds: Callable[[Cost], float] | None,
        note: Callable,
        where: str | None = None,
        host_seconds: Callable[[Cost, bool], float] | None = None,
        results: Results | None = None,
    ):
        super().__init__()
        self.clock = clock
        self.ledger = ledger
        self.seconds = seconds
        self.note = note
        self.where = where
        self.host_seconds, self.host = host_seconds, 0  # how deep in `with comm.host`
        self.results = Results() if results is None else results
        # within an optimizer's step; which way over the host's link
        self.stepping, self.copying = False, ""

    @property
    def phase(self) -> str:
        """What the thread is at: "to host" or "to device" (copies), "backward" (what autograd runs), "step" (of an
        optimizer), else "forward"."""
        if self.copying:
            return self.copying
        if torch._C._current_graph_task_id() != -1:  # autograd has no public name for it
            return "backward"
        return "step" if self.stepping else "forward"

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would wrap each call, at a third more of its cost

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        known = operator(func)
        start = self.clock.time
        if known.composite:  # in inference mode operators arrive whole
            with self:
                return func.decompose(*args, **kwargs)
        out = self.results.call(known, func, args, kwargs)
        read, written = known.operands(args, kwargs, out)
        places, there = self._places(known, read, written)
        if not known.free and (True in places or self._is_charged(read, written)):
            cost = known.cost(args, kwargs, out, read, written, self.results)
            if True in places:
                self._charge_host(known, cost, start, places, written)
            else:
                if self.seconds is not None:
                    self.clock.time = start + self.seconds(cost)
                self.note(known, cost, start, self.clock.time)
        nothing_new = known.view or (bool(args) and out is args[0])
        self.ledger.saw(read, written, start, known.name, there, nothing_new)
        return out

    def _is_charged(self, read: list, written: list) -> bool:
        operands = written or read
        return bool(operands) and self.where in (None, _type(operands[0].device))

    def _places(self, known: Operator, read: list, written: list) -> tuple[set[bool], bool]:
        """Whether the operands lie on the host (a number goes anywhere), and whether what is new does."""
        inside, on_host = self.host > 0, self.ledger.on_host
        if not inside and not self.ledger.hosted:
            return set(), False
        sources = {on_host(x, inside and known.name == "lift_fresh") for x in read if x.dim()}
        there = inside or True in sources
        places = sources | {on_host(x, there) for x in written if x.dim()}
        return places or {on_host(x, there) for x in written or read}, there

    def _charge_host(
        self, known: Operator, cost: Cost, start: float, places: set[bool], written: list
    ) -> None:
        copied = len(places) > 1
        if copied:
            if known.name not in COPIES:
                raise RuntimeError(
                    f"{known.name} has operands on the host and on the device: copy one side first"
                )
            down = self.ledger.on_host(written[0], self.host > 0)
            cost = Cost(0, stored(written), cost.dtype)
            self.ledger.copied[not down] += cost.nbytes
            self.copying = "to host" if down else "to device"
        if self.host_seconds is not None:
            self.clock.time = start + self.host_seconds(cost, copied)
            self.note(known, cost, start, self.clock.time)
        self.copying = ""


class ModelledHost(Host):
    """Tells the Charges of the running thread what is the host's."""

    def __enter__(self) -> ModelledHost:
        for charge in charges():
            if not charge.ledger.open:
                raise RuntimeError(
                    "this rank uses its host's memory, so its own must be followed: "
                    "what lies where is known from that"
                )
            charge.host += 1
        return self

    def __exit__(self, *exception) -> None:
        for charge in charges():
            charge.host -= 1


def charges() -> list[Charge]:
    """The Charges that this thread has entered."""
    return [mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, Charge)]


# ------------------------------------------------------------
# What a ledger must hear of and no operator tells: what modules register, optimizers' steps, resized storages.
#
# torch has one set of such hooks for the whole process. They are installed while a `Watch` is entered, and each acts
# for the rank in whose thread it is called: for the Charges which that thread has entered.


_STORAGE: Any = torch.UntypedStorage  # whose `resize_` is ours for a while


class Watch:
    """The hooks, from `with` to its end. A storage's `resize_` is no operator, so it is wrapped."""

    def __enter__(self) -> Watch:
        self._handles = [
            modules.register_module_parameter_registration_hook(
                functools.partial(_registered, PARAMETERS)
            ),
            modules.register_module_buffer_registration_hook(
                functools.partial(_registered, BUFFERS)
            ),
            register_optimizer_step_pre_hook(functools.partial(_stepping, True)),
            register_optimizer_step_post_hook(functools.partial(_stepping, False)),
        ]
        self._resize = resize = _STORAGE.resize_
        _STORAGE.resize_ = lambda storage, nbytes: _resized(storage, resize(storage, nbytes))
        return self

    def __exit__(self, *exception) -> None:
        _STORAGE.resize_ = self._resize
        for handle in self._handles:
            handle.remove()


def _registered(category: int, module, name: str, x) -> None:
    if x is not None:
        for charge in charges():
            charge.ledger.claim(x, category)


def _stepping(begins: bool, optimizer, args, kwargs) -> None:
    for charge in charges():
        charge.stepping = begins
        if not begins:
            charge.ledger.stepped(optimizer)


def _resized(storage, out):
    for charge in charges():
        charge.ledger.resized(storage)
    return out


# ------------------------------------------------------------
# What a World's run needs of all this: a ledger for each rank, a Charge for each of its fibers, and their end.


# of spans, by phase; else "copy"
KINDS = {"forward": "compute", "backward": "backward", "step": "update"}


class _Outermost(TorchDispatchMode):
    """Entered in the thread that starts the fibers. torch keeps flags about modes for the whole process, which
    fibers put back in whatever order they end; this one is the first to enter and the last to leave."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def _nothing(known: Operator, cost: Cost, start: float, end: float) -> None:
    """Record no span."""


class Meter:
    """Charges the operators of all ranks of a run on `cluster`, and follows their memory on devices of type `where`.

    A cluster without a device charges no time. When it is left, `trace.memory` holds each rank's timeline,
    `trace.host` what it had on its host, if anything; of those `followed`, and `trace.spans` has theirs alone.
    """

    def __init__(
        self, clock: Clock, trace: Trace, cluster: Cluster, where: str, followed: Collection[int]
    ):
        self.clock = clock
        self.trace = trace
        self.cluster = cluster
        self.where = where
        self.followed = followed
        self.ledgers = [Ledger(functools.partial(self._now, rank)) for rank in range(trace.n)]
        for rank, ledger in enumerate(self.ledgers):
            if rank not in followed:
                ledger.close()
        self._done = [count() for _ in range(trace.n)]  # operators of each rank
        self.results = Results()  # of all ranks: their operators are alike
        self._outermost, self._watch = _Outermost(), Watch()

    def __enter__(self) -> Meter:
        self._outermost.__enter__()
        self._watch.__enter__()
        return self

    def __exit__(self, *exception) -> None:
        self._watch.__exit__(*exception)
        self._outermost.__exit__(*exception)
        for rank in sorted(self.followed):
            ledger = self.ledgers[rank]
            self.trace.memory[rank] = ledger.timeline(self.where)
            if ledger.hosted:
                self.trace.host[rank] = OnHost(ledger.timeline(HOST), *ledger.copied)

    @contextmanager
    def charged(self) -> Iterator[None]:
        """What the running fiber computes in here is charged to it. A rank's memory is followed until its main ends."""
        fiber = self.clock.current
        try:
            with self._charge(fiber):
                yield
        finally:
            if fiber.name == "main":
                self.ledgers[fiber.rank].close()

    def _charge(self, fiber: Fiber) -> Charge:
        cluster, rank = self.cluster, fiber.rank
        slowness = 1 / cluster.speed(rank)
        host = None if cluster.host is None else cluster.part_of_host(rank, self.trace.n)

        def noise() -> float:
            """Of the rank's next operator."""
            return cluster.noise("operation", rank, next(self._done[rank]))

        def seconds(device: Device, cost: Cost) -> float:
            return roofline(device, cost) * slowness * noise()

        def host_seconds(host: HostPart, cost: Cost, copied: bool) -> float:
            link = host.link
            alone = link.alpha + cost.nbytes * link.beta if copied else roofline(host.device, cost)
            return alone * cluster.slow_ranks.get(rank, 1.0) * noise()

        def note(known: Operator, cost: Cost, start: float, end: float) -> None:
            if end > start:
                phase = charge.phase
                name = phase if charge.copying else known.name
                self.trace.spans.add(rank, fiber.name, KINDS.get(phase, "copy"), start, end, name)

        charge = Charge(
            fiber,
            self.ledgers[rank],
            None if cluster.device is None else functools.partial(seconds, cluster.device),
            note,
            self.where,
            None if host is None else functools.partial(host_seconds, host),
            self.results,
        )
        if rank not in self.followed:
            charge.note = _nothing
        return charge

    def _now(self, rank: int) -> float:
        """The time of a rank: its running fiber's, else that which the run has reached."""
        current = self.clock.current
        return current.time if current.rank == rank else self.clock.reached
