"""Out of memory with a third of it free: a training step that breaks memory into pieces, and what helps.

Backward, with layers recomputed, allocates in turn what lives for a moment (a layer's activations and their gradients)
and what stays (gradients of parameters). A gradient goes where an activation just died, and what is left of that
block is too small for the next activation, which takes new memory. In the end a flat buffer for all gradients is
asked for: enough is free, but not in one piece (ZeRO, section 3.2, "memory fragmentation", and section 6.3, M_D).

What helps: gradients in one buffer made beforehand, M_D; expandable segments; sizes rounded, so that holes fit
again; and asking for less at a time, buckets.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from minidist.models import TransformerLayer
from minidist.study.memory.items import GiB, MiB
from minidist.study.memory.record import Recording, record

CARD = 8 * GiB - 256 * MiB  # a card of 8 GiB, of which the driver and the kernels take a part


def backward_in_pieces(
    layers: int = 24,
    hidden: int = 2048,
    heads: int = 16,
    batch: int = 4,
    tokens: int = 2752,
    *,
    first: bool = False,
    bucket: int | None = None,
) -> Recording:
    """The allocations of a training step of transformer layers, fp16, every layer recomputed; run on meta tensors.

    The default is 1.2 B parameters: `replay` it into an `Allocator(CARD)`. first: all gradients are views of one
    buffer that was made before. bucket: the buffer for sending is at most so many bytes, reused; None: all at once.
    """
    like = dict(device="meta", dtype=torch.float16)
    model = nn.ModuleList(TransformerLayer(hidden, heads, **like) for _ in range(layers))
    params = list(model.parameters())
    size = sum(p.numel() for p in params)

    def step() -> torch.Tensor:
        flat = torch.empty(size if first else 0, **like)
        for p, part in (
            zip(params, flat.split([p.numel() for p in params]), strict=True) if first else ()
        ):
            p.grad = part.view_as(p)
        x = torch.empty(batch, tokens, hidden, requires_grad=True, **like)
        for layer in model:
            x = checkpoint(layer, x, use_reentrant=False)
        x.sum().backward()
        del x
        return torch.empty(size if bucket is None else min(size, bucket // 2), **like)

    return record(step, there=params)
