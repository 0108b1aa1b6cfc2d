"""All kernels for the CPU by operator, and what is done with them together: compile, forget, say what runs.

warm()       before lesson 12, or a benchmark: 20 to 30 s at first, 5 s where PyTorch's cache has them
backend(x)   "compiled", "eager", "Triton" or "fake"
cool()       back to the eager form
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from . import add, gelu, loss, norm, online, steps, tiles
from .compiled import Kernel, compile_all

KERNELS: dict[str, tuple[Kernel, ...]] = {
    "add3": (add.ADD3,),
    "bias_gelu": (gelu.FORWARD, gelu.BACKWARD),
    "layer_norm": (norm.FORWARD, norm.BACKWARD),
    "softmax": (online.MERGE, online.DIVIDE, online.BACKWARD),
    "cross_entropy": (online.MERGE, loss.BACKWARD),
    "attention": (tiles.FORWARD, tiles.BACKWARD),
    "sgd": (steps.SGD, steps.MOMENTUM),
    "adamw": (steps.ADAMW,),
}


def warm(*names: str, dtypes: Iterable[torch.dtype] = (torch.float32,)) -> str:
    """Compile the kernels of these operators (all unless named) for the CPU, for these dtypes, in this process.

    Returns "compiled", or "eager: " and why: where there is no C++ compiler, or it fails, operators go on in their
    eager form. Raises ValueError for an operator that does not exist.
    """
    return compile_all([kernel for name in names or KERNELS for kernel in _of(name)], list(dtypes))


def cool() -> None:
    """Forget what was compiled: eager again."""
    for kernels in KERNELS.values():
        for kernel in kernels:
            kernel.compiled.clear()


def backend(name: str, x: Tensor) -> str:
    """What the operator `name` runs in, of `x`. ValueError for an operator that does not exist."""
    kernels = _of(name)
    if x.is_meta or x.is_cuda:
        return "fake" if x.is_meta else "Triton"
    return (
        "compiled" if x.device.type == "cpu" and all(k.ready(x.dtype) for k in kernels) else "eager"
    )


def _of(name: str) -> tuple[Kernel, ...]:
    if name not in KERNELS:
        raise ValueError(f"there is no operator {name!r}: there are {', '.join(KERNELS)}")
    return KERNELS[name]
