"""Initial values that do not depend on how a model is split.

Seeds belong to names: the numbers of a parameter come from (seed, its name), never from how many were drawn
before. So a model that is cut into parts, on any number of ranks, starts equal to the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import torch
from torch import Tensor, nn


def generator(seed: int, name: str) -> torch.Generator:
    """Random numbers that belong to `name`, on the CPU."""
    digest = sha256(f"{seed} {name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big"))


def initial(seed: int, name: str, shape: Sequence[int]) -> Tensor:
    """The initial value of a whole parameter, float64 on the CPU; a rank that holds a part cuts it out.

    Matrices, and all with more dimensions: normal, deviation 1/√(inputs of one output) (LeCun et al. 1998,
    section 4.6). Vectors: biases 0, the scales of norms 1.
    """
    if len(shape) < 2:
        return torch.full(shape, float(not name.endswith("bias")), dtype=torch.float64)
    drawn = torch.empty(shape, dtype=torch.float64).normal_(generator=generator(seed, name))
    return drawn * max(1, drawn[0].numel()) ** -0.5


@torch.no_grad()
def seeded_(module: nn.Module, seed: int = 0) -> nn.Module:
    """Give every parameter of `module` its `initial` value, in place. Returns `module`.

    Drawn in float64 and rounded, so models of all dtypes start as near to each other as they can. On the
    meta device there is nothing to draw.
    """
    for name, p in module.named_parameters():
        if not p.is_meta:
            p.copy_(initial(seed, name, p.shape))
    return module
