"""How fast the device at hand is, and how much memory a run has used: what MFU and a trainer's log are made of."""

from __future__ import annotations

import resource
import sys
import time

import torch

from ..comm.cluster import presets
from ..comm.cluster.hardware import Device


def peak(device: torch.device, dtype: torch.dtype, size: int = 512, repeats: int = 5) -> float:
    """FLOP/s of matrix products: a GPU's published figure where there is one, else measured, the best of `repeats`."""
    known = published(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    return known.peak(dtype) if known else measured(device, dtype, size, repeats)


def published(name: str) -> Device | None:
    """The device of `presets` whose name stands in `name`, as in "NVIDIA H100 80GB HBM3"; None where none does."""
    devices = [value for value in vars(presets).values() if isinstance(value, Device)]
    words = name.replace("-", " ").split()
    return next((gpu for gpu in devices if "SXM" in gpu.name and gpu.name.split()[0] in words), None)


def measured(device: torch.device, dtype: torch.dtype, size: int, repeats: int) -> float:
    """2·size³ FLOPs over the fastest product of two matrices of `size`."""
    a = torch.ones(size, size, dtype=dtype, device=device)
    return 2 * size**3 / min(_seconds(a) for _ in range(repeats + 1))


def _seconds(a: torch.Tensor) -> float:
    start = time.perf_counter()
    a @ a
    if a.is_cuda:
        torch.cuda.synchronize(a.device)
    return time.perf_counter() - start


def peak_memory(device: torch.device) -> int:
    """Most bytes that tensors had on a GPU; on a CPU, most that this process had in all."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else 1024 * used
