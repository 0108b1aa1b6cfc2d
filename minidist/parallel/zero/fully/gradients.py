"""From a block's whole gradients to this rank's shard of their average.

`collect` moves them into one flat buffer, scaled by this rank's share of the average, and frees each; after the
reduce-scatter `deposit` adds this rank's chunk to the gradients of its pieces, in the dtype of the shard.

A parameter may have no gradient here and one elsewhere (then it counts as zero), or none anywhere (then it keeps None,
and optimizers skip it, as in serial training). To know which, nothing more is sent: a missing gradient travels as −0.0,
zeros of one that is there as 0.0, and by IEEE 754 a sum is −0.0 only if all its terms are. (They are told apart unless
all that a rank owns of the parameter underflows from below, on every rank.)

Invariant: after `collect` no whole gradient is left. Source: ZeRO, 2020, section 5.2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .flat import Flat


@torch.no_grad()
def collect(flat: Flat, part: Tensor | float) -> tuple[list[Tensor], list[int]]:
    """The flat gradient as n chunks, times `part`; and which parameters, by position, have none here.

    part: this rank's share in the average, a number or a 0-d tensor; 0.0: zeros, whatever the gradient (nan) is.
    Raises ValueError for a sparse gradient.
    """
    buffer = torch.empty(flat.total, dtype=flat.full.dtype, device=flat.full.device)
    zero, missing = buffer.new_zeros(()), []
    for i, (h, view) in enumerate(zip(flat.held, flat.views(buffer), strict=True)):
        grad, h.whole.grad = h.whole.grad, None
        if grad is None:
            view.fill_(-0.0)
            missing.append(i)
        elif grad.layout is not torch.strided:
            raise ValueError(
                f"the gradient of {h.name} is {grad.layout}: a flat buffer takes dense ones "
                "(sparse=False)"
            )
        elif isinstance(part, Tensor):
            torch.mul(grad.detach(), part, out=view).add_(0.0)  # −0.0 + 0.0 is 0.0
        elif part == 0:
            view.zero_()
        else:
            torch.add(zero, grad.detach(), alpha=part, out=view)  # so is 0.0 + part·(−0.0)
        del grad
    return list(buffer.split(flat.sizes)), missing


@torch.no_grad()
def deposit(flat: Flat, mine: Tensor, missing: list[int]) -> None:
    """Add this rank's chunk of the average, `mine`, to the gradients of its pieces."""
    some = [
        i
        for i, (h, new) in enumerate(zip(flat.held, flat.parts(mine), strict=True))
        if h.piece.requires_grad and not (i in missing and _nowhere(new))
    ]
    mine = flat.come_home(mine)
    if any(flat.held[i].piece.grad is None for i in some):
        with flat.home:
            mine = torch.empty_like(flat.shard).copy_(mine)
    for i, new in enumerate(flat.parts(mine)):
        piece = flat.held[i].piece
        if i in some and piece.grad is None:
            piece.grad = new
        elif i in some:
            piece.grad.add_(new)


def _nowhere(new: Tensor) -> bool:
    """Whether no rank has a gradient for these elements. Of meta tensors: no."""
    return new.is_meta or bool((torch.signbit(new) & (new == 0)).all())
