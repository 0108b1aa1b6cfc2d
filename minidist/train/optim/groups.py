"""Parameter groups: which parameters are stepped plainly, and which are cut over ranks.

Biases and the scales and shifts of norms are excluded from weight decay and from trust ratios: they are few, start at
0 or 1, and their length says nothing of how far they may move. (You et al. 2017 have one rate for each layer's weights;
to leave these out became the custom with LARS on ResNet-50 and with BERT.)

    optimizer = LAMB(groups(model), lr=…)                                          whole parameters, ZeRO 1 and 2
    optimizer = LAMB(groups(model), lr=…, across={"data": comm})                   model: a FullySharded over comm
    optimizer = LAMB(groups(model), lr=…, across={"tensor": comm})                 tensor-parallel layers
    optimizer = LAMB(groups(model), lr=…, across={"data": rows, "tensor": columns})      both
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from ...parallel.tensor import cuts
from ...parallel.zero import FullySharded


def bias_or_norm(name: str, shape: Sequence[int]) -> bool:
    """Whether a parameter with this name and whole shape is a bias, or of a norm: fewer than 2 dimensions."""
    return len(shape) < 2 or name.rpartition(".")[2] == "bias"


def groups(
    module: nn.Module, plain: Callable[[str, Sequence[int]], bool] = bias_or_norm
) -> list[dict[str, Any]]:
    """Groups of the module's parameters, with their names, for any optimizer: on all ranks of the module the same.

    plain(name, shape): whether this one is stepped without weight decay and trust ratio (weight_decay=0, trust=0).
    The shape is the unsharded one. Each group has `split`, the ways in which its parameters are cut: "data" those of a
    `FullySharded`, "tensor" those that a split module names in its `cuts`.
    Pieces keep the order of `named_parameters`; those without elements are there, too.
    """
    how, shapes = cuts(module), {}
    for part in module.modules():
        if isinstance(part, FullySharded):
            shapes |= {held.piece: held.shape for unit in part.units for held in unit.held}
    found: dict[tuple, dict[str, Any]] = {}
    for name, p in module.named_parameters():
        split = ("data",) * (p in shapes) + ("tensor",) * (name in how)
        free = plain(name, shapes.get(p, p.shape))
        group = found.setdefault((free, split), {"params": [], "split": split})
        group["params"].append((name, p))
        if free:
            group |= {"weight_decay": 0.0, "trust": 0.0}
    return list(found.values())
