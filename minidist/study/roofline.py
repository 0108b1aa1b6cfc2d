"""What operators are bound by: their launch, the memory or the arithmetic of a device.

    bound(tally, device)       "launch", "memory" or "compute"
    roofline(profile)          a table of the operators that `study.measure` saw
    roof(tallies, device)      a picture: TFLOP/s against FLOPs a byte, below the device's roof

The meter counts FLOPs of products alone: an operator without a product has an intensity of 0, and no place on the
logarithmic axis. The picture names those below. Source: Williams et al. 2009, "Roofline"; the launch is ours.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from minidist.comm.cluster import Device
from minidist.study.charts import Table, curves, table
from minidist.study.meter import Profile, Tally
from minidist.study.picture import Picture

MOST_POINTS, TERA = 10, 1e12


def bound(tally: Tally, device: Device) -> str:
    """ "launch", "memory" or "compute": the largest of the three parts of these calls' time on `device`."""
    launch, memory = tally.calls * device.launch, tally.nbytes / device.bandwidth
    # Σ max(compute, memory) of the calls; memory-bound ones give memory itself
    work = tally.seconds - launch
    return "launch" if launch > work else "compute" if work > memory * (1 + 1e-9) else "memory"


def intensity(tally: Tally) -> float:
    """FLOPs a byte; 0 where nothing is moved."""
    return tally.flops / tally.nbytes if tally.nbytes else 0.0


def roofline(profile: Profile) -> Table:
    """Operators, the slowest first: calls, FLOPs a byte, what bounds them, and their share of the roofline's time."""
    rows = [
        (
            name,
            t.calls,
            round(intensity(t), 2),
            bound(t, profile.device),
            f"{t.seconds / profile.time:.0%}",
        )
        for name, t in profile.by_operator.items()
    ]
    return table(
        rows,
        ["operator", "calls", "FLOPs a byte", "bound by", "of the time"],
        title=f"Operators on {profile.device.name}",
    )


def roof(
    tallies: Mapping[str, Tally],
    device: Device,
    dtype: torch.dtype = torch.float32,
    *,
    title: str = "",
) -> Picture:
    """Points of `{"name": Tally}` below the roof of `device`, whose arithmetic is that of products in `dtype`.

    Errors: ValueError for no point with FLOPs, or more than 10; for a dtype that the device has no peak for.
    """
    points = {name: t for name, t in tallies.items() if t.flops and t.nbytes}
    if not 0 < len(points) <= MOST_POINTS:
        raise ValueError(
            f"roof draws 1 to {MOST_POINTS} operators that have FLOPs, not {len(points)}"
        )
    peak, places = device.peak(dtype), {name: intensity(t) for name, t in points.items()}
    ridge = peak / device.bandwidth
    low, high = min(*places.values(), ridge) / 4, max(*places.values(), ridge) * 4
    corners = [low, ridge, high], [low * device.bandwidth / TERA, peak / TERA, peak / TERA]
    dots = {name: ([places[name]], [t.flops / t.seconds / TERA]) for name, t in points.items()}
    absent = [name for name in tallies if name not in points]
    below = f"FLOPs a byte, the ridge at {ridge:.0f}" + f" (no FLOPs: {', '.join(absent)})" * bool(
        absent
    )
    name = f"{device.name}, {str(dtype).removeprefix('torch.')}"
    return curves(
        {name: corners},
        points=dots,
        title=title or f"The roof of {device.name}",
        xlabel=below,
        ylabel="TFLOP/s",
        logx=True,
        logy=True,
    )
