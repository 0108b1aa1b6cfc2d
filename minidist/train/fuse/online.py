"""Online softmax: the normalizer in one reading, so that a row of any length passes by in parts.

Problem: a safe softmax reads a row three times: for its peak m = max x, for s = Σ exp(x − m), for the result.
Idea: take m and s together. Two parts of a row, each with its own, are merged without seeing them again:

    m = max(m₁, m₂)     s = s₁·exp(m₁ − m) + s₂·exp(m₂ − m)            (associative, so parts may be of any size)

                  launches     bytes, of N elements
    written out   5            8N: peak, difference, exp, sum, quotient
    online        1            3N: read for m and s, read for the result, written (2N where a row stays on the chip)
    backward      1            5N: y and dy read for Σ y·dy, and again for dx = y·(dy − Σ y·dy), which is written

Invariant: s ≥ 1 after any part with a finite number, and no exp is of a positive number: nothing overflows. A row of
−inf alone gives nan, as in PyTorch. Source: Milakov and Gimelshein 2018, algorithm 3 and section 3.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .compiled import Kernel, filled
from .operator import columns, differentiable, exact, operator, rows

PART = 4096
"""Columns that are looked at together: of some hundred rows they fit in a core's cache."""


def merge(part: Tensor, m: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Peaks `m` (rows,) and sums `s` (rows,) of what came before, with those of `part` (rows, columns) merged in."""
    part = exact(part)
    peak = torch.maximum(m, part.amax(-1))
    return peak, s * (m - peak).exp() + (part - peak[:, None]).exp().sum(-1)


def divide_(out: Tensor, part: Tensor, m: Tensor, s: Tensor) -> None:
    """`out` becomes the softmax of `part`, whose rows have the peaks `m` and sums `s`."""
    out.copy_((exact(part) - m[:, None]).exp() / s[:, None])


def _backward(y: Tensor, dy: Tensor) -> Tensor:
    wide, more = exact(y), exact(dy)
    return (wide * (more - (wide * more).sum(-1, keepdim=True))).to(y.dtype)


def parts(dtype: torch.dtype) -> list[tuple]:
    """Examples of a kernel of (rows, columns) and two numbers a row: a part of a longer row has gaps in memory."""
    (x,), row = (
        filled((96, PART), dtype=dtype),
        filled((96,), (96,), dtype=torch.promote_types(dtype, torch.float32)),
    )
    return [(x, *row), (x[:, :1000], *row)]


def written(dtype: torch.dtype) -> list[tuple]:
    """The same examples, of a kernel whose first argument becomes its result and lies as the second does."""
    return [
        (
            *(x.as_strided(part.shape, part.stride()) for x in filled((96, PART), dtype=dtype)),
            part,
            *row,
        )
        for part, *row in parts(dtype)
    ]


def normalizer(x: Tensor, part: int = PART) -> tuple[Tensor, Tensor]:
    """m = max x and s = Σ exp(x − m) of every row of x (rows, V), each (rows,) in float32 at least, `part` by `part`.

    log Σ exp(x) is m + log s.
    """
    like = dict(dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
    # finite: exp(−inf − m) is 0, not nan
    m = torch.full(x.shape[:1], torch.finfo(like["dtype"]).min, **like)
    s = torch.zeros(x.shape[:1], **like)
    for columns_ in x.split(part, -1):
        m, s = MERGE(columns_, m, s)
    return m, s


MERGE = Kernel(merge, parts)
DIVIDE = Kernel(divide_, written)
BACKWARD = Kernel(
    _backward, lambda dtype: [filled((96, V), (96, V), dtype=dtype) for V in (PART, PART + 8)]
)


def softmax_plain(x: Tensor) -> Tensor:
    """Each step a launch: over the last dimension."""
    wide = exact(x)
    powers = (wide - wide.amax(-1, keepdim=True)).exp()
    return (powers / powers.sum(-1, keepdim=True)).to(x.dtype)


@operator("softmax", fake=lambda x: x.new_empty(x.shape), moved=lambda x, out_val: 3 * x.nbytes)
def _softmax(x: Tensor) -> Tensor:
    flat = rows(x)
    m, s = normalizer(flat)
    out = torch.empty_like(flat)
    for to, source in zip(out.split(PART, -1), flat.split(PART, -1), strict=True):
        DIVIDE(to, source, m, s)
    return out.view(x.shape)


@operator(
    "softmax_backward",
    fake=lambda y, dy: y.new_empty(y.shape),
    moved=lambda y, dy, out_val: 5 * y.nbytes,
)
def _softmax_backward(y: Tensor, dy: Tensor) -> Tensor:
    return BACKWARD(rows(y), rows(dy)).view(y.shape)


differentiable(
    _softmax,
    lambda ctx, dy: (_softmax_backward(*ctx.saved_tensors, dy),),
    lambda ctx, inputs, output: ctx.save_for_backward(output),
)


def softmax(x: Tensor) -> Tensor:
    """`x.softmax(-1)`, (…, V) → (…, V). ValueError unless x is of a floating type and has a dimension."""
    columns(x)
    return _softmax(x)
