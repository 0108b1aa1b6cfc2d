"""What half precision does to numbers, counted: gradients that it cannot hold, updates that it loses.

    fp16    sign, 5 bits of exponent, 10 of fraction: 2⁻¹⁴ (normal), 2⁻²⁴ (smallest) … 65,504, relative steps of 2⁻¹⁰
    bf16    sign, 8 bits of exponent,  7 of fraction: 2⁻¹²⁶ … 3.4·10³⁸, relative steps of 2⁻⁷

Half the smallest number, and less, becomes zero: gradients underflow. Half a step of a weight, and less, added to it
gives the same weight: the update is lost. Source: Micikevicius et al. 2018, sections 3.1 and 3.2, figures 2b and 3.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor


class Exponents(NamedTuple):
    """Numbers by their exponent, and what becomes of them in `dtype`. All are counts.

    counts: {e: how many |x| from 2^e to below 2^(e+1)}, in order of e, as they are before rounding.
    zeros: 0 already.  bad: inf or nan already.
    Of those in `counts`: normal, subnormal (kept with fewer bits), underflow (become 0), overflow (become inf).
    """

    dtype: torch.dtype
    counts: dict[int, int]
    zeros: int
    bad: int
    normal: int
    subnormal: int
    underflow: int
    overflow: int

    @property
    def total(self) -> int:
        return self.zeros + self.bad + sum(self.counts.values())

    def shifted(self, powers: int) -> dict[int, int]:
        """`counts` of the numbers times 2^powers: what a loss scale does."""
        return {e + powers: count for e, count in self.counts.items()}


def exponents(
    tensors: Tensor | Iterable[Tensor], dtype: torch.dtype = torch.float16, scale: float = 1.0
) -> Exponents:
    """Count the elements of `tensors` (gradients, say; None among them is passed over) times `scale` by exponent.

    Give gradients of fp32, of which `dtype` has lost nothing yet. Errors: ValueError for meta tensors.
    """
    x = _flat(tensors) * scale
    finite = x[x.isfinite() & (x != 0)].abs()
    _, powers = torch.frexp(finite)  # |x| = m·2^p with m from 1/2 to below 1
    found, counts = torch.unique(powers - 1, return_counts=True)
    rounded, tiny = finite.to(dtype).double(), torch.finfo(dtype).tiny
    under, over = int((rounded == 0).sum()), int(rounded.isinf().sum())
    sub = int((rounded < tiny).sum()) - under
    by_power = dict(zip(found.tolist(), counts.tolist(), strict=True))
    zeros, bad = int((x == 0).sum()), int(x.isfinite().logical_not().sum())
    return Exponents(
        dtype, by_power, zeros, bad, len(finite) - under - over - sub, sub, under, over
    )


def lost(
    updates: Tensor | Iterable[Tensor],
    weights: Tensor | Iterable[Tensor],
    dtype: torch.dtype = torch.float16,
) -> float:
    """The share, 0 to 1, of the updates that are not 0 which leave their weight in `dtype` as it is.

    updates: what is added to the weights, of the same sizes. Errors: ValueError for other sizes, meta tensors.
    """
    u, w = _flat(updates), _flat(weights)
    if u.shape != w.shape:
        raise ValueError(f"{u.numel()} updates do not fit {w.numel()} weights")
    w = w.to(dtype)
    moves = u != 0
    stays = moves & ((w.double() + u).to(dtype) == w)
    return stays.sum().item() / max(1, moves.sum().item())


def _flat(tensors: Tensor | Iterable[Tensor]) -> Tensor:
    """All elements in one row, in float64."""
    rows = [tensors] if isinstance(tensors, Tensor) else [x for x in tensors if x is not None]
    if any(x.is_meta for x in rows):
        raise ValueError(
            f"{sum(x.is_meta for x in rows)} of {len(rows)} tensors are on the meta device: no values"
        )
    return torch.cat(
        [torch.empty(0, dtype=torch.float64), *(x.detach().cpu().double().flatten() for x in rows)]
    )
