"""A linear layer on a gathered sequence that keeps only its own part of it for backward.

What the sequence-parallel operators leave undivided is the gathered input (B, T, H): the layer needs it for its
weight's gradient. Here each rank keeps its part (B, T/n, H) and gathers once more in backward, on a lane of its own,
beside the product for the input's gradient. Then all that a transformer layer keeps is divided by n.

    forward    X = all-gather(x);  Y = X·Aᵀ + b
    backward   all-gather(x) beside dY·A;  dx = reduce-scatter(dY·A);  dA = dYᵀ·X;  db = Σ dY

Cost: (n−1)/n·N bytes more than without. Source: Korthikanti et al. 2022, section 4.2.2, whose all-gather in backward
this is, overlapped as there.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ...collectives import all_gather
from ...comm.base import Comm
from .operators import gather_rows, reduce_scatter_rows


class _Linear(Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, comm: Comm) -> Tensor:
        ctx.comm = comm
        ctx.save_for_backward(x, weight)
        return F.linear(gather_rows(comm, x, -2), weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias, _ = ctx.needs_input_grad
        again = ctx.comm.stream(all_gather, x.movedim(-2, 0).contiguous()) if of_weight else None
        # (…, T/n, inputs)
        mine = reduce_scatter_rows(ctx.comm, grad @ weight.to(grad.dtype), -2) if of_x else None
        flat = grad.flatten(0, -2)  # (B·T, outputs/n)
        for_weight = flat.t() @ _flat(again.wait()).to(grad.dtype) if of_weight else None
        return mine, for_weight, flat.sum(0) if of_bias else None, None


def _flat(rows: Tensor) -> Tensor:
    """(T, …, inputs), as rows are gathered, to (…·T, inputs)."""
    return rows.movedim(0, -2).flatten(0, -2)


def linear_on_gathered(x: Tensor, weight: Tensor, bias: Tensor | None, comm: Comm) -> Tensor:
    """`F.linear(gather_sequence(x, comm), weight, bias)`, (…, T/n, inputs) → (…, T, outputs/n), keeping `x` alone."""
    return _Linear.apply(x, weight, bias, comm)
