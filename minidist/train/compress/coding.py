"""How a sparse vector travels: 4 bytes for a value, 2 for its place.

    ends    for each block of 65,536 places: how many entries there are up to its end     8 bytes a block
    values  K of them, in the order of their places                                       w bytes each
    low     the last 16 bits of each place                                                2 bytes each

Places in full would be 4 or 8 bytes each. The paper sends runs of zeros, 16 bits each, too, and has to break up longer
ones; here the length depends on K alone, so ranks with equal K need not tell each other. (w + 2)K + 8·⌈N/65536⌉ bytes,
in one tensor, so that it is one message. Lin et al. 2018, "Deep Gradient Compression", section 3.1 (encode).
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 1 << 16


def pack(values: Tensor, places: Tensor, length: int) -> Tensor:
    """`values` (K,) and their `places` (K,) int64, in rising order, of a vector of `length` numbers: uint8."""
    parts = (_ends(places, length), values, places.to(torch.int16))
    return torch.cat([part.view(torch.uint8) for part in parts])


def unpack(packed: Tensor, count: int, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Back to `count` values of `dtype`, and their places."""
    blocks = -(-length // BLOCK)
    sizes = [8 * blocks, count * dtype.itemsize, 2 * count]
    ends, values, low = packed.clone().split(sizes)  # a copy begins where its dtypes may
    block = torch.searchsorted(
        ends.view(torch.int64), torch.arange(count, device=packed.device), right=True
    )
    return values.view(dtype), block * BLOCK + low.view(torch.int16).to(torch.int64).bitwise_and(
        BLOCK - 1
    )


def _ends(places: Tensor, length: int) -> Tensor:
    """How many of the places lie before the end of each block."""
    return torch.searchsorted(
        places, torch.arange(BLOCK, length + BLOCK, BLOCK, device=places.device)
    )
