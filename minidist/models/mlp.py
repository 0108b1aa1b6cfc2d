"""A multi-layer perceptron: the smallest model that shows anything."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from minidist.models.layers import Linear
from minidist.models.seeds import made


def mlp(
    sizes: Sequence[int], seed: int = 0, dtype: torch.dtype | None = None, device: str = "cpu"
) -> nn.Sequential:
    """Linear layers with ReLU between them: `mlp([64, 128, 10])` maps (B, 64) to (B, 10).

    Raises ValueError for fewer than two sizes.
    """
    if len(sizes) < 2:
        raise ValueError(
            f"an MLP has at least 2 sizes, its inputs and its outputs, not {len(sizes)}: {list(sizes)}"
        )
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [Linear(inputs, outputs, dtype=dtype, device="meta"), nn.ReLU()]
    return made(nn.Sequential(*layers[:-1]), seed, device)
