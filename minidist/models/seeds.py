"""Initial values that do not depend on how a model is split.

Seeds belong to names: the numbers of a parameter come from (seed, its name), never from how many were drawn
before. So a model that is cut into parts, on any number of ranks, starts equal to the whole.

Whoever holds a part draws the whole, too: a generator gives its numbers one after the other. But it draws a block of
rows at a time into one buffer, and cuts the part out of that: 8 MiB beside the part, or 16 rows, whatever the size of
the whole. The blocks depend on the whole's shape alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from hashlib import sha256

import torch
from torch import Tensor, nn

from minidist import arguments

BLOCK = 1 << 20
"""Numbers of one block, about; 16 rows at least."""


def generator(seed: int, name: str) -> torch.Generator:
    """Random numbers that belong to `name`, on the CPU."""
    digest = sha256(f"{seed} {name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big"))


def initial(seed: int, name: str, shape: Sequence[int]) -> Tensor:
    """The initial value of a whole parameter, float64 on the CPU.

    Matrices, and all with more dimensions: normal, deviation 1/√(inputs of one output) (LeCun et al. 1998,
    section 4.6). Vectors: biases 0, the scales of norms 1.
    """
    return initial_(torch.empty(shape, dtype=torch.float64), seed, name)


@torch.no_grad()
def initial_(
    part: Tensor, seed: int, name: str, dim: int = 0, first: int = 0, whole: int | None = None
) -> Tensor:
    """Give `part` its `initial` value, in place, on any device and rounded to its dtype. Returns `part`.

    The part has the numbers from `first` on along `dim`, 0 or 1, of a parameter that has `whole` of them there; else
    it is all of the parameter. On the device "meta" there is nothing to draw. ValueError for a part that the whole
    does not have.
    """
    size = part.shape[dim] if part.dim() else 0
    whole = size if whole is None else whole
    if not 0 <= first <= first + size <= whole:
        raise ValueError(
            f"{size} from {first} on are no part of {whole} along dimension {dim} of {name}"
        )
    if part.is_meta:
        return part
    if part.dim() < 2:
        return part.fill_(float(not name.endswith("bias")))
    for at, rows in _rows(seed, name, (*part.shape[:dim], whole, *part.shape[dim + 1 :])):
        if dim == 0:
            begin, end = max(at, first), min(at + len(rows), first + size)
            if begin < end:
                part[begin - first : end - first] = rows[begin - at : end - at]
        else:
            part[at : at + len(rows)] = rows.narrow(dim, first, size)
    return part


def _rows(seed: int, name: str, shape: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
    """The whole parameter, float64, in blocks of rows, each with the number of its first row; all in one buffer."""
    wide, drawn = math.prod(shape[1:]), generator(seed, name)
    step = 16 * max(1, BLOCK // (16 * max(1, wide)))
    ends = [*range(step, shape[0], step), shape[0]]
    # torch draws 16 numbers at once: so blocks are as one
    if len(ends) > 1 and (ends[-1] - ends[-2]) * wide < 16:
        del ends[-2]
    sizes = [end - first for first, end in zip([0, *ends], ends, strict=False)]
    buffer = torch.empty((max(sizes), *shape[1:]), dtype=torch.float64)
    for end, size in zip(ends, sizes, strict=True):
        yield end - size, buffer[:size].normal_(generator=drawn).mul_(max(1, wide) ** -0.5)


@torch.no_grad()
def seeded_(module: nn.Module, seed: int = 0) -> nn.Module:
    """Give every parameter of `module` its `initial` value, in place. Returns `module`.

    Drawn in float64 and rounded, so models of all dtypes start as near to each other as they can.
    """
    for name, p in module.named_parameters():
        initial_(p, seed, name)
    return module


def made(module: nn.Module, seed: int, device: str | torch.device) -> nn.Module:
    """A module that was built on the device "meta", on `device` with its initial values."""
    place, seed = arguments.device(device), arguments.whole(seed, "a seed is a whole number")
    return module if place.type == "meta" else seeded_(module.to_empty(device=place), seed)
