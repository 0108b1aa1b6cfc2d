"""The norm of all gradients where each rank holds some of them: one number a rank is what has to travel.

‖g‖ = (Σ_r Σ_{i of rank r} |g_i|^p)^(1/p), for p = ∞ the largest. Cost: an all-reduce of 8 bytes, 4 with fp32 gradients.
Invariant: every rank finds the same number, bit for bit, and scales by it. Pascanu et al. 2013, section 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...collectives import all_reduce_
from ...comm.base import Comm


def own_norm(x: Tensor, norm_type: float = 2.0) -> Tensor:
    """The norm of one tensor, a number of float32 at least, in which it is also summed."""
    return torch.linalg.vector_norm(x, norm_type, dtype=torch.promote_types(x.dtype, torch.float32))


@torch.no_grad()
def global_norm(
    comm: Comm, grads: Sequence[Tensor], norm_type: float = 2.0, dtype: torch.dtype = torch.float64
) -> Tensor:
    """The norm of the gradients of all ranks together: a number of `dtype`, in which it is also summed.

    grads: this rank's, each gradient on one rank.  norm_type: p > 0, or infinity.
    """
    if not norm_type > 0:
        raise ValueError(f"the type of a norm is above 0, not {norm_type}")
    largest = norm_type == float("inf")
    norms = [own_norm(g, norm_type) for g in grads if g.numel()]
    nothing = torch.zeros((), dtype=dtype, device=comm.device)
    each = torch.stack([nothing, *(x.to(comm.device, dtype) for x in norms)])
    if largest:
        return all_reduce_(comm, each.max(), "max")
    return all_reduce_(comm, (each**norm_type).sum()) ** (1 / norm_type)


def clip_(
    comm: Comm,
    grads: Sequence[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    counted: Sequence[Tensor] | None = None,
) -> Tensor:
    """Scale the gradients, in place, so that their norm over all ranks is at most `max_norm`; returns what it was.

    As `torch.nn.utils.clip_grad_norm_`: times max_norm/(norm + 1e-6), where that is below 1.  counted: those of this
    rank's gradients that no other rank counts, None for all. Raises ValueError for a limit below 0.
    """
    if not max_norm >= 0:
        raise ValueError(f"gradients are clipped to a norm of at least 0, not {max_norm}")
    norm = global_norm(comm, grads if counted is None else counted, norm_type)
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for g in grads:
        # 16 bits of it would change them all
        factor = scale.to(g.device, torch.promote_types(g.dtype, torch.float32))
        if g.dtype == factor.dtype:
            g.mul_(factor)
        else:
            g.copy_(g.to(factor.dtype).mul_(factor))
    return norm
