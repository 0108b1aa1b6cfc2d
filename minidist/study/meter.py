"""What a function costs: FLOPs, bytes moved, time on a device by its roofline, live memory by category.

    profile = measure(step)             # a function, a module, whatever can be called
    profile.flops, profile.peak         # integers; print the profile for tables

No call in the function is needed, and no World: its operators are seen below autograd, on CPU, GPU or meta tensors
(which hold no data, so that a model of any size can be measured here). What counts is said in `comm.costs`: FLOPs,
bytes and memory. The time is that of the modelled device, one operator after the other, whatever machine runs the
function; it is not the time that the function took here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from minidist.comm.charge import Charge, Watch, roofline
from minidist.comm.cluster import H100, Device
from minidist.comm.costs import Cost, Ledger, Operator
from minidist.comm.program import reachable
from minidist.comm.trace import Timeline
from minidist.study.charts import Table, table
from minidist.study.picture import measure as words
from minidist.study.picture import short, unit_of

PHASES = ("forward", "backward", "step")
FLOP_UNITS = ((10**15, "PFLOP"), (10**12, "TFLOP"), (10**9, "GFLOP"), (10**6, "MFLOP"), (1, "FLOP"))
MOST_OPERATORS = 12


class Tally(NamedTuple):
    """A sum over calls of operators: how many, their FLOPs, bytes moved and seconds."""

    calls: int = 0
    flops: int = 0
    nbytes: int = 0
    seconds: float = 0.0


@dataclass(repr=False)
class Profile:
    """What `measure` found.

    result: of the function.  device: the Device whose roofline gives `time`, in seconds.
    flops, bytes_moved, calls: integers, of all operators.
    by_phase: {"forward" | "backward" | "step": Tally}: backward is what autograd runs (recomputation too), step
    what an optimizer does in its `step()`, forward all else.  by_operator: {name: Tally}, the slowest first.
    phases: (phase, start, end) in seconds, in order.
    timeline: live bytes by category over time, of the type of device in `timeline.device`; peak, at_peak: its own.
    allocator: on CUDA what PyTorch's allocator says of the same call, {"allocated" | "reserved": peak bytes} of the
    current GPU; it rounds blocks up and counts all that the process holds, workspaces of kernels too.
    """

    device: Device
    result: Any = None
    by_phase: dict[str, Tally] = field(default_factory=lambda: dict.fromkeys(PHASES, Tally()))
    by_operator: dict[str, Tally] = field(default_factory=dict)
    phases: list[tuple[str, float, float]] = field(default_factory=list)
    timeline: Timeline | None = None
    allocator: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> Tally:
        return Tally(*map(sum, zip(*self.by_phase.values(), strict=True)))

    calls = property(lambda self: self.total.calls)
    flops = property(lambda self: self.total.flops)
    bytes_moved = property(lambda self: self.total.nbytes)
    time = property(lambda self: self.total.seconds)
    peak = property(lambda self: self.timeline.peak)
    at_peak = property(lambda self: self.timeline.at_peak)

    def add(self, phase: str, name: str, cost: Cost, start: float, end: float) -> None:
        """Count one call."""
        one = Tally(1, cost.flops, cost.nbytes, end - start)
        for sums, key in ((self.by_phase, phase), (self.by_operator, name)):
            sums[key] = Tally(*map(sum, zip(sums.get(key, Tally()), one, strict=True)))
        if self.phases and self.phases[-1][0] == phase:
            start = self.phases.pop()[1]
        self.phases.append((phase, start, end))

    def tables(self) -> list[Table]:
        """Work by phase, memory at the peak, and the operators that take longest."""
        phases = [(name, *_row(t)) for name, t in self.by_phase.items() if t.calls] + [
            ("all", *_row(self.total))
        ]
        end = self.timeline.at(float("inf"))
        memory = [
            (c, words(b, "B"), words(end[c], "B")) for c, b in self.at_peak.items() if b or end[c]
        ]
        memory.append(("all", words(self.peak, "B"), words(sum(end.values()), "B")))
        memory += [
            (f"the allocator's own: {what}", words(b, "B"), None)
            for what, b in self.allocator.items()
        ]
        work = ["calls", "FLOPs", "bytes moved", "time"]
        most = [(name, *_row(t)) for name, t in list(self.by_operator.items())[:MOST_OPERATORS]]
        return [
            table(phases, ["phase", *work], title=f"Work, by the roofline of {self.device.name}"),
            table(
                memory,
                ["live memory", "at the peak", "at the end"],
                title=f"{self.timeline.device} tensors",
            ),
            table(most, ["operator", *work], title=_heading(len(most), len(self.by_operator))),
        ]

    def __repr__(self) -> str:
        return "\n\n".join(t.text for t in self.tables())

    def _repr_html_(self) -> str:
        return "".join(t._repr_html_() for t in self.tables())


def _row(t: Tally) -> tuple:
    scale, unit = unit_of(t.flops, FLOP_UNITS)
    return (
        t.calls,
        f"{short(t.flops / scale if scale > 1 else t.flops)} {unit}",
        words(t.nbytes, "B"),
        words(t.seconds, "s"),
    )


def _heading(shown: int, of: int) -> str:
    return "Operators" if shown == of else f"Operators, the {shown} of {of} that take longest"


class _Stopwatch:
    time = 0.0


def measure(
    fn: Callable, *args, device: Device | None = None, where: str | None = None, **kwargs
) -> Profile:
    """Call `fn(*args, **kwargs)` once and say what it costs.

    device: whose roofline gives the time; one H100 unless given.  where: operators on tensors of this type of device
    ("cpu", "cuda", "meta") count, all others are the host's; unless given, the one that holds most of what `fn` is
    given or reaches by name, or all where that is nothing.
    Errors: ValueError for a product in a dtype for which the device has no peak, and if most memory turns out to be
    elsewhere while `where` was not given; whatever `fn` raises.
    """
    profile, clock = Profile(device or H100), _Stopwatch()
    ledger = Ledger(lambda: clock.time)
    ledger.existing([args, kwargs, *(value for _, value in reachable(fn))])
    counted = where or (ledger.timeline().device if ledger else None)

    def note(known: Operator, cost: Cost, start: float, end: float) -> None:
        profile.add(charge.phase, known.name, cost, start, end)

    charge = Charge(clock, ledger, functools.partial(roofline, profile.device), note, counted)
    with _one_thread(), _allocator(profile.allocator), Watch(), charge:
        profile.result = fn(*args, **kwargs)
    ledger.close()
    profile.timeline = ledger.timeline(where)
    if counted not in (None, profile.timeline.device):
        raise ValueError(
            f"{getattr(fn, '__name__', fn)} was given {counted} tensors, but most of its memory is in "
            f"{profile.timeline.device} tensors: say which of the two to measure, where=…"
        )
    profile.by_operator = dict(
        sorted(profile.by_operator.items(), key=lambda item: -item[1].seconds)
    )
    return profile


def _one_thread():
    """Backward in this thread, also on a GPU."""
    return torch.autograd.set_multithreading_enabled(False)


@contextmanager
def _allocator(figures: dict[str, int]) -> Iterator[None]:
    """What PyTorch's CUDA allocator says of the peak, where it is used."""
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
    yield
    if torch.cuda.is_initialized():
        figures["allocated"] = torch.cuda.max_memory_allocated()
        figures["reserved"] = torch.cuda.max_memory_reserved()
