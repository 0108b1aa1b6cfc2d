"""What a function costs, what bounds it, and how fast the device at hand is.

    profile = measure(step)             # a function, a module, whatever can be called
    profile.flops, profile.peak         # integers; print the profile for tables
    roofline(profile), roof(…)          # what bounds operators, as a table and as a picture;  bound(tally, device) of one
    device_peak(device, dtype), peak_memory(device)     # what MFU and a trainer's log are made of

No call in the function is needed, and no World: its operators are seen below autograd, on CPU, GPU or meta tensors
(which hold no data, so that a model of any size can be measured here). `comm.costs` says what FLOPs and bytes count,
`comm.meter` what memory. The time is that of the modelled device, one operator after the other, whatever machine runs
the function; it is not the time that the function took here.

FLOPs are those of products alone: an operator without a product has an intensity of 0, and no place on the logarithmic
axis of a roof. The picture names those below. Source: Williams et al. 2009, "Roofline"; the launch is ours.
"""

from __future__ import annotations

import functools
import resource
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from minidist.arguments import function
from minidist.comm import cluster
from minidist.comm.cluster import H100, Device
from minidist.comm.costs import Cost, Operator
from minidist.comm.meter import Charge, Ledger, Watch
from minidist.comm.meter import roofline as roofline_seconds
from minidist.comm.program import reachable
from minidist.comm.trace import Timeline
from minidist.study.charts import Table, curves, table
from minidist.study.picture import Picture, room
from minidist.study.picture import measure as words

PHASES = ("forward", "backward", "step")
MOST_OPERATORS = 12


class Tally(NamedTuple):
    """A sum over calls of operators: how many, their FLOPs, bytes moved and seconds."""

    calls: int = 0
    flops: int = 0
    nbytes: int = 0
    seconds: float = 0.0

    @property
    def intensity(self) -> float:
        """FLOPs a byte; 0 where nothing is moved."""
        return self.flops / self.nbytes if self.nbytes else 0.0

    def row(self) -> list:
        """As a table shows it."""
        work = words(self.flops, "FLOP")
        return [self.calls, work, words(self.nbytes, "B"), words(self.seconds, "s")]


def summed(tallies: Iterable[Tally]) -> Tally:
    """The sum of several."""
    return Tally(*map(sum, zip(*tallies, strict=True)))


@dataclass(repr=False)
class Profile:
    """What `measure` found.

    result: what the function returned.  device: the Device whose roofline gives `time`, in seconds.
    flops, bytes_moved, calls: integers, totals over all operators.
    by_phase: {"forward" | "backward" | "step": Tally}: backward is what autograd runs (including recomputation), step
    is what an optimizer does in its `step()`, and forward is everything else.  by_operator: {name: Tally}, the slowest
    first.
    phases: (phase, start, end) in seconds, in order.
    timeline: live bytes by category over time, on the type of device named in `timeline.device`; peak and at_peak are
    taken from it.
    allocator: on CUDA, what PyTorch's allocator reports for the same call, {"allocated" | "reserved": peak bytes} on
    the current GPU; it rounds blocks up and counts everything that the process holds, including workspaces of kernels.

    >>> import torch
    >>> from minidist.models import mlp
    >>> from minidist.study import measure
    >>> model = mlp([512, 1024, 10])
    >>> def step(x):
    ...     model(x).sum().backward()
    >>> profile = measure(step, torch.ones(64, 512))
    >>> profile.by_phase["forward"].flops == 2 * 64 * (512 * 1024 + 1024 * 10)
    True
    >>> profile.by_phase["backward"].flops == 2 * 64 * (512 * 1024 + 1024 * 10 * 2)
    True
    >>> profile.at_peak["parameters"], sum(p.nbytes for p in model.parameters())
    (2142248, 2142248)
    """

    device: Device
    result: Any = None
    by_phase: dict[str, Tally] = field(default_factory=lambda: dict.fromkeys(PHASES, Tally()))
    by_operator: dict[str, Tally] = field(default_factory=dict)
    phases: list[tuple[str, float, float]] = field(default_factory=list)
    timeline: Timeline = field(default_factory=lambda: Timeline([], [], []))
    allocator: dict[str, int] = field(default_factory=dict)

    total = property(lambda self: summed(self.by_phase.values()))
    calls = property(lambda self: self.total.calls)
    flops = property(lambda self: self.total.flops)
    bytes_moved = property(lambda self: self.total.nbytes)
    time = property(lambda self: self.total.seconds)
    peak = property(lambda self: self.timeline.peak)
    at_peak = property(lambda self: self.timeline.at_peak)

    def add(self, phase: str, name: str, cost: Cost, start: float, end: float) -> None:
        """Count one call."""
        call = Tally(1, cost.flops, cost.nbytes, end - start)
        self.by_phase[phase] = summed([self.by_phase[phase], call])
        self.by_operator[name] = summed([self.by_operator.get(name, Tally()), call])
        if self.phases and self.phases[-1][0] == phase:
            start = self.phases.pop()[1]
        self.phases.append((phase, start, end))

    def tables(self) -> list[Table]:
        """Work by phase, memory at the peak, and the operators that take longest."""
        phases = [[name, *tally.row()] for name, tally in self.by_phase.items() if tally.calls]
        phases.append(["all", *self.total.row()])
        at_peak, at_end = self.at_peak, self.timeline.at(float("inf"))
        at_peak, at_end = (held | {"all": sum(held.values())} for held in (at_peak, at_end))
        memory = [
            [name, words(at_peak[name], "B"), words(at_end[name], "B")]
            for name in at_peak
            if at_peak[name] or at_end[name] or name == "all"
        ]
        for kind, nbytes in self.allocator.items():
            memory.append([f"the allocator's own: {kind}", words(nbytes, "B"), None])
        slowest = list(self.by_operator.items())[:MOST_OPERATORS]
        operators = [[name, *tally.row()] for name, tally in slowest]
        count = len(self.by_operator)
        rest = f", the {len(slowest)} of {count} that take longest" * (len(slowest) < count)
        work = ["calls", "FLOPs", "bytes moved", "time"]
        return [
            table(phases, ["phase", *work], title=f"Work, by the roofline of {self.device.name}"),
            table(
                memory,
                ["live memory", "at the peak", "at the end"],
                title=f"{self.timeline.device} tensors",
            ),
            table(operators, ["operator", *work], title=f"Operators{rest}"),
        ]

    def __repr__(self) -> str:
        return "\n\n".join(t.text for t in self.tables())

    def _repr_html_(self) -> str:
        return "".join(t._repr_html_() for t in self.tables())


def measure(
    fn: Callable, *args, device: Device | None = None, where: str | None = None, **kwargs
) -> Profile:
    """Call `fn(*args, **kwargs)` once and say what it costs.

    device: the Device whose roofline gives the time; an H100 unless given.  where: a type of device ("cpu", "cuda",
    "meta"): operators on its tensors count, and all others are taken as the host's. Unless given, it is the type that
    holds most of the tensors that `fn` is given or reaches by name; if there are none, all operators count.
    Errors: ValueError for a product in a dtype for which the device has no peak, and, if `where` was not given, when
    most memory turns out to be elsewhere; whatever `fn` raises.

    >>> import torch
    >>> from minidist.study import measure
    >>> x = torch.empty(4096, 8192, device="meta")  # which holds no data
    >>> weight = torch.empty(8192, 8192, device="meta")
    >>> profile = measure(torch.mm, x, weight)
    >>> profile.flops == 2 * 4096 * 8192 * 8192
    True
    >>> profile.bytes_moved == (x.nbytes + weight.nbytes) + x.nbytes
    True
    >>> profile.peak == profile.bytes_moved
    True
    >>> profile.result.shape
    torch.Size([4096, 8192])
    """
    function(fn, "measure calls a function or a module")
    profile = Profile(device or H100)
    clock = SimpleNamespace(time=0.0)
    ledger = Ledger(lambda: clock.time)
    ledger.existing([args, kwargs, *(value for _, value in reachable(fn))])
    counted = where or (ledger.timeline().device if ledger else None)

    def note(known: Operator, cost: Cost, start: float, end: float) -> None:
        profile.add(charge.phase, known.name, cost, start, end)

    seconds = functools.partial(roofline_seconds, profile.device)
    charge = Charge(clock, ledger, seconds, note, counted)
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
    # backward runs in this thread, also on a GPU
    with torch.autograd.set_multithreading_enabled(False), Watch(), charge:
        profile.result = fn(*args, **kwargs)
    if torch.cuda.is_initialized():
        profile.allocator["allocated"] = torch.cuda.max_memory_allocated()
        profile.allocator["reserved"] = torch.cuda.max_memory_reserved()
    ledger.close()
    profile.timeline = ledger.timeline(where)
    if counted not in (None, profile.timeline.device):
        raise ValueError(
            f"{getattr(fn, '__name__', fn)} was given {counted} tensors, but most of its memory is in "
            f"{profile.timeline.device} tensors: say which of the two to measure, where=…"
        )
    slowest_first = sorted(profile.by_operator.items(), key=lambda item: -item[1].seconds)
    profile.by_operator = dict(slowest_first)
    return profile


# ------------------------------------------------------------
# What operators are bound by: their launch, the memory or the arithmetic of a device.


def bound(tally: Tally, device: Device) -> str:
    """ "launch", "memory" or "compute": the largest of the three parts of these calls' time on `device`.

    >>> import torch
    >>> from minidist.comm.cluster import H100
    >>> from minidist.study import bound, measure
    >>> x = torch.empty(4096, 4096, device="meta", dtype=torch.bfloat16)
    >>> def kind(function, *args):
    ...     return bound(measure(function, *args).by_phase["forward"], H100)
    >>> kind(torch.mm, x, x), kind(torch.relu, x), kind(torch.relu, x[:1, :1])
    ('compute', 'memory', 'launch')
    """
    launch = tally.calls * device.launch
    # Σ max(compute, memory) of the calls; memory-bound ones give memory itself
    work = tally.seconds - launch
    if launch > work:
        return "launch"
    return "compute" if work > device.moving(tally.nbytes) * (1 + 1e-9) else "memory"


def roofline(profile: Profile) -> Table:
    """Operators, the slowest first: calls, FLOPs a byte, what bounds them, and their share of the roofline's time.

    >>> import torch
    >>> from minidist.study import measure, roofline
    >>> x = torch.empty(4096, 4096, device="meta", dtype=torch.bfloat16)
    >>> roofline(measure(lambda: torch.relu(x @ x)))
    Operators on H100 SXM
    operator  calls  FLOPs a byte  bound by  of the time
    ────────────────────────────────────────────────────
    mm            1         1,365  compute   89%
    relu          1             0  memory    11%
    """
    rows = []
    for name, tally in profile.by_operator.items():
        share = f"{tally.seconds / profile.time:.0%}"
        binds = bound(tally, profile.device)
        rows.append([name, tally.calls, round(tally.intensity, 2), binds, share])
    names = ["operator", "calls", "FLOPs a byte", "bound by", "of the time"]
    return table(rows, names, title=f"Operators on {profile.device.name}")


def roof(
    tallies: Mapping[str, Tally],
    device: Device,
    dtype: torch.dtype = torch.float32,
    *,
    title: str = "",
) -> Picture:
    """Points of `{"name": Tally}` below the roof of `device`, whose arithmetic is that of products in `dtype`.

    Errors: ValueError for no point with FLOPs, or more than 10; for a dtype that the device has no peak for.

    >>> import torch
    >>> from minidist.comm.cluster import H100
    >>> from minidist.study import measure, roof
    >>> x = torch.empty(4096, 4096, device="meta", dtype=torch.bfloat16)
    >>> tallies = {"square": measure(torch.mm, x, x).total, "thin": measure(torch.mm, x, x[:, :8]).total}
    >>> {name: round(tally.intensity) for name, tally in tallies.items()}
    {'square': 1365, 'thin': 8}
    >>> roof(tallies, H100, torch.bfloat16)
    The roof of H100 SXM
    TFLOP/s against FLOPs a byte, the ridge at 295
      line H100 SXM, bfloat16: 1.99: 6.67; 295: 989; 5,461: 989
      points square: 1,365: 578
      points thin: 7.97: 15.4
    """
    points = {name: tally for name, tally in tallies.items() if tally.intensity}
    room("operators that have FLOPs", len(points), 10)
    tera = 1e12
    peak = device.peak(dtype)
    ridge = peak / device.bandwidth
    places = {name: tally.intensity for name, tally in points.items()}
    low, high = min(*places.values(), ridge) / 4, max(*places.values(), ridge) * 4
    corners = [low, ridge, high], [low * device.bandwidth / tera, peak / tera, peak / tera]
    dots = {
        name: ([places[name]], [tally.flops / tally.seconds / tera])
        for name, tally in points.items()
    }
    absent = ", ".join(name for name in tallies if name not in points)
    note = f" (no FLOPs: {absent})" if absent else ""
    return curves(
        {f"{device.name}, {str(dtype).removeprefix('torch.')}": corners},
        points=dots,
        title=title or f"The roof of {device.name}",
        xlabel=f"FLOPs a byte, the ridge at {ridge:.0f}{note}",
        ylabel="TFLOP/s",
        logx=True,
        logy=True,
    )


# ------------------------------------------------------------
# How fast the device at hand is, and how much memory a run has used.

LONG = 2e-3
"""Seconds that a product must take before it counts: starting one on a GPU, and hearing of its end, costs some 1e-5."""

SMALLEST, LARGEST = 256, 2**30
"""Of the matrices: rows of the first that is tried, and bytes of the last, with its product."""

ENOUGH = 0.5
"""Seconds after which no further product is started."""


def device_peak(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of matrix products: a GPU's published figure where there is one, else `measured_peak`."""
    known = known_device(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    return known.peak(dtype) if known else measured_peak(device, dtype)


def known_device(name: str) -> Device | None:
    """The device of `comm.cluster` whose name stands in `name`, as in "NVIDIA H100 80GB HBM3"; None where none does."""
    words = name.replace("-", " ").split()
    for device in vars(cluster).values():
        if isinstance(device, Device) and "SXM" in device.name and device.name.split()[0] in words:
            return device
    return None


def measured_peak(device: torch.device, dtype: torch.dtype) -> float:
    """2·size³ FLOPs over the fastest of three products of two matrices of `size`.

    The size doubles until a product takes LONG: a small one would show what it costs to start it, not how fast the
    device is. So a GPU is given matrices of some thousand rows, a core of a CPU those of 256 or 512. `peak_memory`
    does not count them on a GPU: it begins anew here.
    """
    size = SMALLEST
    fastest = product_seconds(device, dtype, size, 1)
    while fastest < LONG and 2 * (2 * size) ** 2 * dtype.itemsize <= LARGEST:
        size *= 2
        fastest = product_seconds(device, dtype, size, 1)
    fastest = min(fastest, product_seconds(device, dtype, size, 3))
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    return 2 * size**3 / fastest


def product_seconds(device: torch.device, dtype: torch.dtype, size: int, repeats: int) -> float:
    """The fastest of so many products of a matrix with itself, after one that chooses its kernel; fewer if they take long.

    Of one number alone a GPU would need less power, and be faster than with any model.
    """
    matrix = torch.linspace(-1, 1, size * size, dtype=dtype, device=device).view(size, size)
    product = torch.empty_like(matrix)
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda device: None
    begin = time.perf_counter()
    seconds: list[float] = []
    while not seconds or len(seconds) <= repeats and time.perf_counter() - begin <= ENOUGH:
        wait(device)
        start = time.perf_counter()
        torch.mm(matrix, matrix, out=product)
        wait(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def peak_memory(device: torch.device) -> int:
    """Most bytes that tensors had on a GPU; on a CPU, most that this process had in all."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else 1024 * used
