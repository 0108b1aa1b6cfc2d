"""Rotary positions: queries and keys are turned by an angle that grows with their position.

Of a head of size D, numbers 2i and 2i+1 are a point of the plane. At position t it is turned by t·θᵢ with
θᵢ = base^(−2i/D):

    (a, b) → (a·cos tθᵢ − b·sin tθᵢ, a·sin tθᵢ + b·cos tθᵢ)        as complex numbers: z → z·exp(i·tθᵢ)

The product of a query at t and a key at s then depends on t − s alone, and there is no parameter. Source: Su et al.
2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", section 3.2.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotated(x: Tensor, base: float = 10000.0) -> Tensor:
    """Queries or keys (…, T, D), of positions 0 … T−1, each turned by its position; angles in float32 at least.

    Raises ValueError for an odd D.
    """
    T, size = x.shape[-2:]
    if size % 2:
        raise ValueError(
            f"rotary positions turn pairs of numbers: a head of size {size} is not a multiple of 2"
        )
    exact = torch.promote_types(x.dtype, torch.float32)
    speeds = base ** (-torch.arange(0, size, 2, dtype=exact, device=x.device) / size)  # (D/2)
    angles = torch.arange(T, dtype=exact, device=x.device)[:, None] * speeds  # (T, D/2)
    cos, sin = angles.cos(), angles.sin()
    a, b = x.unflatten(-1, (size // 2, 2)).unbind(-1)  # each (…, T, D/2)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2).to(x.dtype)
