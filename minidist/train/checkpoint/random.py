"""The random generators of this process, as a state that can be saved: what a run needs to draw the same numbers.

PyTorch's on the CPU and, once CUDA is in use, on every GPU that this process sees; Python's; NumPy's. A generator of
one's own is saved by `generator.get_state()`, a tensor. In a World each rank has its own of PyTorch's on the CPU.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def random_state() -> dict[str, Any]:
    """All of them, as they are now. About 13 kB."""
    kind, keys, *rest = np.random.get_state()
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {"torch": torch.get_rng_state(), "cuda": gpus, "python": random.getstate(),
            "numpy": [kind, keys.tolist(), *rest]}  # fmt: skip


def set_random_state(state: dict[str, Any]) -> None:
    """Go on drawing where `random_state` was called. Raises ValueError where this process sees other GPUs."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if len(state["cuda"]) not in (0, gpus):
        raise ValueError(f"the state is that of {len(state['cuda'])} GPUs, this process sees {gpus}")
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    random.setstate(state["python"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
