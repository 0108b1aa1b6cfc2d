"""What a run of a technique leaves in the record: counted exactly, computed to six digits."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from minidist.comm import Cluster, Device, Level, World
from tests.record.programs import RUNS

FLOPS = {torch.float64: 1e12, torch.float32: 2e12, torch.float16: 4e12, torch.bfloat16: 4e12}
DEVICE = Device("record", flops=FLOPS, memory=10**12, bandwidth=1e12, launch=1e-6)
DIGITS = 6


def cluster(n):
    """Nodes of two devices, as many as are needed; a host in each."""
    links = {"nvlink": Level(2e-6, 1e-10), "pcie": Level(4e-6, 1e-9), "nic": Level(1e-5, 2e-9)}
    return Cluster("record", DEVICE, links, devices=2, nodes=math.ceil(n / 2), host=DEVICE)


def recorded(name: str, n: int) -> dict:
    """What the run `name` shows at `n` ranks."""
    results = World(n, cluster=cluster(n)).run(RUNS[name].program)
    trace, memory = results.trace, results.trace.memory
    return {
        "messages": [trace.messages(rank) for rank in range(n)],
        "bytes": [trace.bytes_sent(rank) for rank in range(n)],
        "peaks": [memory[rank].peak if rank in memory else 0 for rank in range(n)],
        "at peak": [
            {k: v for k, v in memory[rank].at_peak.items() if v} if rank in memory else {}
            for rank in range(n)
        ],
        "seconds": rounded(results.time),
        "results": [list(leaves(result)) for result in results],
    }


def rounded(x: float) -> float:
    return float(f"{x:.{DIGITS - 1}e}")


def leaves(value: Any) -> Iterator:
    """A tensor as its shape, its dtype, its sum, and a sum in which every number has another weight."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().double().flatten()
        weights = torch.cos(torch.arange(1, flat.numel() + 1, dtype=torch.float64))
        yield [
            list(value.shape),
            str(value.dtype).removeprefix("torch."),
            rounded(flat.sum().item()),
            rounded((flat * weights).sum().item()),
        ]
    elif isinstance(value, dict):
        for key in sorted(value):
            yield key
            yield from leaves(value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, float | np.floating):
        yield rounded(float(value))
    else:
        yield value


def techniques() -> dict[str, dict]:
    """{"technique, n": what it shows} of all."""
    return {f"{name} · {n}": recorded(name, n) for name, run in RUNS.items() for n in run.ranks}
