"""A batch cut into M micro-batches, and the weight of each in the gradient.

The mean over a batch of B samples is the sum of the micro-batches' means, each times its share b/B. So uneven
micro-batches add up to the gradient of the whole batch, if every loss is multiplied by its share before backward.
"""

from __future__ import annotations

from torch import Tensor

from ...split import bounds, uneven

Batch = Tensor | tuple[Tensor, ...]


def several(x) -> tuple[Tensor, ...]:
    """What a module takes or gives, as a tuple."""
    found = (x,) if isinstance(x, Tensor) else tuple(x)
    for one in found:
        if not isinstance(one, Tensor):
            raise TypeError(f"stages pass tensors to each other, not {type(one).__name__}")
    return found


def micro_batches(batch: Batch | list[Batch], M: int, what: str) -> list[tuple[Tensor, ...]]:
    """M tuples of tensors. A list holds them already; all else is cut along the first dimension, the first ones larger.

    Raises ValueError for a batch of fewer samples than M, and for a list of another length.
    """
    if isinstance(batch, list):
        if len(batch) != M:
            raise ValueError(
                f"{what}: a list of {len(batch)} micro-batches was given, and {M} are wanted"
            )
        return [several(one) for one in batch]
    tensors = several(batch)
    heights = {rows(x, what) for x in tensors}
    if len(heights) != 1:
        raise ValueError(
            f"{what}: tensors of {' and '.join(map(str, sorted(heights)))} samples are no batch"
        )
    if min(heights) < M:
        raise ValueError(
            f"{what}: a batch of {min(heights)} samples does not make {M} micro-batches"
        )
    return [
        tuple(x[first:end].detach() for x in tensors)
        for first, end in bounds(uneven(heights.pop(), M))
    ]


def rows(x: Tensor, what: str) -> int:
    """Samples in a tensor."""
    if not x.dim():
        raise ValueError(f"{what}: a tensor of 0 dimensions has no samples; 1 is the least")
    return x.shape[0]


def shares(parts: list[tuple[Tensor, ...]]) -> list[float]:
    """The share of each micro-batch in the batch."""
    sizes = [rows(part[0], "a micro-batch") for part in parts]
    return [size / sum(sizes) for size in sizes]
