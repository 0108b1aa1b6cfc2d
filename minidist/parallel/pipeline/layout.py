"""What a message of several tensors looks like, told in advance: shapes, dtypes, and which of them want a gradient.

A receive needs room before the message comes. Shapes differ between stages, and between micro-batches where the
batch does not divide, so the receiver cannot guess them; and a header before every message costs α each. But the
same batch gives the same shapes. So the first stage numbers the kinds of batches that it is given, and a number
travels down the pipeline at the start of a step: 24 bytes an edge, forward only. A number that is new is followed,
once, by the layout of each activation; gradients look like the activations whose they are.

Invariant: for a number that is known, a message holds the tensors' values and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)


class Layout(NamedTuple):
    """One tensor of a message. wanted: it has a gradient, which the receiver sends back."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    wanted: bool

    def empty(self, device: torch.device) -> Tensor:
        """Room for it; a leaf that collects its gradient if that is wanted."""
        return torch.empty(self.shape, dtype=self.dtype, device=device, requires_grad=self.wanted)

    def __str__(self) -> str:
        return (
            f"{self.shape} {str(self.dtype).removeprefix('torch.')}{' with gradient' * self.wanted}"
        )


def layout(x: Tensor, wanted: bool | None = None) -> Layout:
    """That of a tensor."""
    return Layout(tuple(x.shape), x.dtype, x.requires_grad if wanted is None else wanted)


def numbers(layouts: Sequence[Layout]) -> list[int]:
    """Layouts as whole numbers, for a message. ValueError for a dtype that has none."""
    row = [len(layouts)]
    for one in layouts:
        if one.dtype not in DTYPES:
            raise ValueError(f"tensors of dtype {one.dtype} do not pass between stages")
        row += [DTYPES.index(one.dtype), int(one.wanted), len(one.shape), *one.shape]
    return row


def layouts(row: Sequence[int]) -> list[Layout]:
    """The layouts that `numbers` wrote."""
    rest = iter(row)
    found = []
    for _ in range(next(rest)):
        dtype = next(rest)
        wanted = next(rest)
        dims = next(rest)
        found.append(Layout(tuple(next(rest) for _ in range(dims)), DTYPES[dtype], bool(wanted)))
    return found


def words(several: Sequence[Layout]) -> str:
    """Layouts for people."""
    return ", ".join(map(str, several)) or "no tensor"
