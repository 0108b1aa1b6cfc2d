"""Orthonormal columns for a tall, thin matrix, as PyTorch's PowerSGD makes them.

Gram–Schmidt, column by column, for one or two columns and for 16 bits; Householder's QR for more. Both span the same
space; they differ in signs and rounding, and equal runs need equal ones. A column of zeros stays one (a division by its
norm would make all parameters nan): the gradient of a layer that was not reached.
Cost: N·r² for N rows and r columns. Source: Vogels et al. 2019, section 3; torch's powerSGD_hook for which when.
"""

from __future__ import annotations

import torch
from torch import Tensor


def orthogonalize_(x: Tensor) -> Tensor:
    """Make the columns of `x`, (rows, r) with r ≤ rows, orthonormal. Returns `x`."""
    if x.shape[1] > 2 and x.dtype not in (torch.float16, torch.bfloat16):
        return x.copy_(torch.linalg.qr(x).Q)
    for i in range(x.shape[1]):
        column, rest = x[:, i : i + 1], x[:, i + 1 :]
        norm = torch.linalg.vector_norm(column)
        column.div_(torch.where(norm == 0, torch.ones_like(norm), norm))
        rest.sub_((column * rest).sum(0, keepdim=True) * column)
    return x
