"""The random generators of this process, as a state that can be saved: what a run needs to draw the same numbers.

PyTorch's on the CPU and, once CUDA is in use, on the current GPU, which is this rank's own: so a run goes on where each
node has another number of GPUs. Python's; NumPy's. A generator of one's own is saved by `generator.get_state()`, a
tensor. In a World each rank has its own of PyTorch's on the CPU.
"""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor


def random_state() -> dict[str, Any]:
    """All of them, as they are now. About 13 kB."""
    kind, keys, *rest = np.random.get_state()
    own = [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []
    return {
        "torch": torch.get_rng_state(),
        "cuda": own,
        "python": random.getstate(),
        "numpy": [kind, keys.tolist(), *rest],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Go on drawing where `random_state` was called, on the GPU that is the current one now.

    Where that cannot be done for the GPU, its generator stays as it is, and a warning says why: the state is that of a
    GPU, and this process sees none; or it has the generators of several GPUs, as versions before had it that saved all
    which a process saw, and this process sees another number of them. Of as many, the current one's is taken.
    """
    found, complaint = _own(state["cuda"])
    torch.set_rng_state(state["torch"])
    if found is not None:
        torch.cuda.set_rng_state(found)
    random.setstate(state["python"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    if complaint:
        warnings.warn(complaint, stacklevel=2)


def _own(saved: list[Tensor]) -> tuple[Tensor | None, str | None]:
    """Which of the saved generators is that of the current GPU; what to say where none is."""
    if not saved:
        return None, None
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not gpus:
        return (
            None,
            "the state has the generator of a GPU, and this process sees none: it goes on without",
        )
    if len(saved) == 1:
        return saved[0], None
    device = torch.cuda.current_device()
    if len(saved) == gpus:
        return saved[device], None
    return None, (
        f"the state has the generators of {len(saved)} GPUs and does not say which was this rank's; this "
        f"process sees {gpus}: the generator of GPU {device} stays as it is"
    )
