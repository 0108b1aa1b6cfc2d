"""Time and memory of computation, without a call in the program.

Charge      a TorchDispatchMode that sees every operation, charges its roofline time and tells the ledger
Watch       what a ledger must hear of and no operator tells
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import cache
from operator import attrgetter

import torch
from torch.nn.modules import module as modules
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from .base import Host
from .cluster import Device
from .costs import BUFFERS, PARAMETERS, Cost, Ledger, Operator, called, operator, stored

# ------------------------------------------------------------
# How operators are seen and charged: the roofline of each, added to the time of the fiber that runs it.
#
# A `Charge` is a dispatch mode: it sees each aten operator that its thread runs, forward, backward (which autograd
# runs in the rank's own thread) and the optimizer's step, on real and on meta tensors. It adds to the time of the
# running fiber
#
#     launch + max(FLOPs / peak FLOP/s of the dtype, bytes / bandwidth)       times the rank's slowness
#
# (the roofline: Williams et al. 2009), notes it, and shows operands and results to the rank's ledger. Views and
# allocations take no time. Each lane has a Charge of its own: what a stream computes takes the lane's time, so
# streams overlap. What runs on another kind of device (a CPU tensor beside a GPU's) is free. What lies in the memory
# of a `ModelledHost` runs there; a copy to or from it takes the host's link, as long as one alone would take.


_type = cache(attrgetter("type"))  # of a device: torch makes the word anew each time
COPIES = {"copy_", "_to_copy", "clone"}  # what may have operands on the host and on the device


def roofline(device: Device, cost: Cost) -> float:
    """Seconds that a call takes on `device`, at the peak of its data sheet: `device.efficiency` is not charged.

    Raises ValueError if it has no peak for the dtype of a product.
    """
    compute = cost.flops / device.peak(cost.dtype) if cost.flops else 0.0
    return device.launch + max(compute, cost.nbytes / device.bandwidth)


class Charge(TorchDispatchMode):
    """Charges the operators of one thread to `clock.time`, in seconds.

    seconds(cost): of a call; None charges no time.  where: the type of device that is charged ("cpu", "meta",
    "cuda"); None: all.  note(operator, cost, start, end): called for each operator charged.
    beside(cost, copied): seconds of an operator of the host, or of a copy to or from it; None: they are free.
    """

    def __init__(
        self,
        clock,
        ledger: Ledger,
        seconds: Callable[[Cost], float] | None,
        note: Callable,
        where: str | None = None,
        beside: Callable[[Cost, bool], float] | None = None,
    ):
        super().__init__()
        self.clock = clock
        self.ledger = ledger
        self.seconds = seconds
        self.note = note
        self.where = where
        self.beside, self.host = beside, 0  # how deep in `with comm.host`
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
        out = called(known, func, args, kwargs)
        read, written = known.operands(args, kwargs, out)
        ledger = self.ledger
        places, there = (
            self._places(known, read, written) if self.host or ledger.hosted else ((), False)
        )
        if not known.free:
            if True in places:
                self._charge_beside(
                    known, known.cost_of(args, kwargs, out, read, written), start, places, written
                )
            elif self._charged(read, written):
                self._charge(known, known.cost_of(args, kwargs, out, read, written), start)
        ledger.saw(
            read, written, start, known.name, there, known.view or (bool(args) and out is args[0])
        )
        return out

    def _places(self, known: Operator, read: list, written: list) -> tuple[set[bool], bool]:
        """Whether the operands lie on the host (a number goes anywhere), and whether what is new does."""
        inside, on_host = self.host > 0, self.ledger.on_host
        sources = {on_host(x, inside and known.name == "lift_fresh") for x in read if x.dim()}
        there = inside or True in sources
        places = sources | {on_host(x, there) for x in written if x.dim()}
        return places or {on_host(x, there) for x in written or read}, there

    def _charge_beside(
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
        if self.beside is not None:
            self.clock.time = start + self.beside(cost, copied)
            self.note(known, cost, start, self.clock.time)
        self.copying = ""

    def _charged(self, read: list, written: list) -> bool:
        some = written or read
        return bool(some) and (self.where is None or _type(some[0].device) == self.where)

    def _charge(self, known: Operator, cost: Cost, start: float) -> None:
        if self.seconds is not None:
            self.clock.time = start + self.seconds(cost)
        self.note(known, cost, start, self.clock.time)


class ModelledHost(Host):
    """Tells the Charges of the running thread what is the host's."""

    def __enter__(self) -> ModelledHost:
        for charge in charges():
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
        self._resize = resize = torch.UntypedStorage.resize_
        torch.UntypedStorage.resize_ = lambda storage, nbytes: _resized(
            storage, resize(storage, nbytes)
        )
        return self

    def __exit__(self, *exception) -> None:
        torch.UntypedStorage.resize_ = self._resize
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


# of spans, by phase; else "copy"
KINDS = {"forward": "compute", "backward": "backward", "step": "update"}


class _Outermost(TorchDispatchMode):
    """Entered in the thread that starts the fibers. torch keeps flags about modes for the whole process, which
    fibers put back in whatever order they end; this one is the first to enter and the last to leave."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))
