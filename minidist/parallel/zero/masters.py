"""Masters: copies of the parameters in a higher precision, of those that this rank owns, which its optimizer steps.

An update of less than half a unit in the last place of an fp16 weight is lost; in fp32 it is kept until it shows. Every
rank would hold 4Ψ bytes of masters; here it holds 4Ψ/n, as with all that the optimizer needs.

    gradients, fp16 ──▶ fp32 ──▶ step of the masters, fp32 ──▶ parameters, fp16 ──▶ all-gather

The gradients in fp32, 4Ψ/n, live only while they are needed. Micikevicius et al. 2018, section 3.1; ZeRO, section 3.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .layout import FlatParameters


class Masters:
    """The masters of some FlatParameters. dtype: theirs; None: there are none, the parameters step themselves.

    of: {parameter: master}, of this rank, where the dtypes differ.
    """

    def __init__(self, dtype: torch.dtype | None):
        if dtype is not None and not dtype.is_floating_point:
            raise ValueError(f"masters have a floating-point dtype, not {dtype}")
        self.dtype, self.of = dtype, {}
        self._flats: list[tuple[Tensor, Tensor]] = []  # a chunk of parameters, and its masters

    def add(self, flat: FlatParameters) -> None:
        if self.dtype not in (None, flat.buffer.dtype):
            copy, masters = flat.like(self.dtype)
            self._flats.append((flat.chunks[flat.comm.rank], copy))
            self.of |= masters

    def stepped(self, p: Tensor) -> Tensor:
        """What the optimizer steps for `p`."""
        return self.of.get(p, p)

    def take_gradients(self) -> None:
        """The gradients of the parameters, in the masters' dtype."""
        for p, master in self.of.items():
            master.grad = None if p.grad is None else p.grad.to(self.dtype)

    def drop_gradients(self) -> None:
        for master in self.of.values():
            master.grad = None

    def write_back(self) -> None:
        """The parameters become their masters, rounded."""
        for chunk, masters in self._flats:
            chunk.copy_(masters)

    def refresh(self) -> None:
        """The masters become the parameters, after these were loaded."""
        for chunk, masters in self._flats:
            masters.copy_(chunk)
