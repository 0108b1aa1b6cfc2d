"""How fast the device at hand is, and how much memory a run has used: what MFU and a trainer's log are made of."""

from __future__ import annotations

import resource
import sys
import time

import torch

from ..comm import cluster
from ..comm.cluster import Device

LONG = 2e-3
"""Seconds that a product must take before it counts: starting one on a GPU, and hearing of its end, costs some 1e-5."""

SMALLEST, LARGEST = 256, 2**30
"""Of the matrices: rows of the first that is tried, and bytes of the last, with its product."""

ENOUGH = 0.5
"""Seconds after which no further product is started."""


def peak(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of matrix products: a GPU's published figure where there is one, else `measured`."""
    known = published(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    return known.peak(dtype) if known else measured(device, dtype)


def published(name: str) -> Device | None:
    """The device of `comm.cluster` whose name stands in `name`, as in "NVIDIA H100 80GB HBM3"; None where none does."""
    devices = [value for value in vars(cluster).values() if isinstance(value, Device)]
    words = name.replace("-", " ").split()
    return next(
        (gpu for gpu in devices if "SXM" in gpu.name and gpu.name.split()[0] in words), None
    )


def measured(device: torch.device, dtype: torch.dtype, repeats: int = 3) -> float:
    """2·size³ FLOPs over the fastest of `repeats` products of two matrices of `size`.

    The size doubles until a product takes LONG: a small one would show what it costs to start it, not how fast the
    device is. So a GPU is given matrices of some thousand rows, a core of a CPU those of 256 or 512. `peak_memory`
    does not count them on a GPU: it begins anew here.
    """
    size = SMALLEST
    a, product = _matrices(device, dtype, size)
    fastest = _seconds(a, product, 1)
    while fastest < LONG and 2 * (2 * size) ** 2 * a.element_size() <= LARGEST:
        size *= 2
        a, product = _matrices(device, dtype, size)
        fastest = _seconds(a, product, 1)
    fastest = min(fastest, _seconds(a, product, repeats))
    del a, product
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    return 2 * size**3 / fastest


def _matrices(
    device: torch.device, dtype: torch.dtype, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix, and where its product with itself goes. Of one number alone a GPU would need less power, and be faster
    than with any model."""
    numbers = torch.linspace(-1, 1, size * size, dtype=dtype, device=device)
    return numbers.view(size, size), torch.empty(size, size, dtype=dtype, device=device)


def _seconds(a: torch.Tensor, product: torch.Tensor, repeats: int) -> float:
    """The fastest of so many products, after one that chooses its kernel; fewer where they take long."""
    first, took = time.perf_counter(), []
    for _ in range(repeats + 1):
        _finish(a.device)
        start = time.perf_counter()
        torch.mm(a, a, out=product)
        _finish(a.device)
        took.append(time.perf_counter() - start)
        if time.perf_counter() - first > ENOUGH:
            break
    return min(took)


def _finish(device: torch.device) -> None:
    """Wait for what this process has started there."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory(device: torch.device) -> int:
    """Most bytes that tensors had on a GPU; on a CPU, most that this process had in all."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else 1024 * used
