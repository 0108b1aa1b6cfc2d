"""Which part of a parameter a rank has: what a serial model's weights are taken apart by, and put together.

A split module says how each of its parameters is cut: `module.cuts = {"weight": Cut(0, [3, 3, 2]), …}`. What is not
named there is whole on every rank. Names are the serial module's, so a state dict of the whole model serves all n:

    layer.load_state_dict(shard(serial.state_dict(), layer, comm))      taken apart
    serial.load_state_dict(unshard(layer, comm))                        put together

Seeds belong to names: a whole parameter's initial value is `initial(seed, name, shape)`, and a rank cuts its part
out of it, block by block. So for every n the model starts equal to the serial one, without a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...comm.base import Comm, describe
from ...models.seeds import initial_
from ...split import bounds
from .operators import gather_from


class Cut(NamedTuple):
    """A tensor cut along `dim`: rank r has sizes[r] of it."""

    dim: int
    sizes: list[int]

    def part(self, whole: Tensor, rank: int) -> Tensor:
        """The rank's part of `whole`, a view."""
        first, end = bounds(self.sizes)[rank]
        return whole.narrow(self.dim, first, end - first)

    def shape(self, whole: tuple[int, ...], size: int) -> tuple[int, ...]:
        """The shape of `whole` with `size` along the dimension that is cut."""
        return (*whole[: self.dim], size, *whole[self.dim + 1 :])


def parameter(
    shape: tuple[int, ...],
    cut: Cut | None,
    comm: Comm,
    seed: int,
    name: str,
    dtype: torch.dtype | None = None,
    device=None,
) -> nn.Parameter:
    """This rank's part of a parameter whose whole has this shape, with its initial value. `cut` None: all of it."""
    mine = shape if cut is None else cut.shape(shape, cut.sizes[comm.rank])
    made = torch.empty(mine, dtype=dtype, device=comm.device if device is None else device)
    if cut is None:
        return nn.Parameter(initial_(made, seed, name))
    first, _ = bounds(cut.sizes)[comm.rank]
    return nn.Parameter(initial_(made, seed, name, cut.dim, first, shape[cut.dim]))


def join(*names: str) -> str:
    """The name of a parameter within modules: `join("mlp", "fc", "weight")`. Empty ones do not count."""
    return ".".join(filter(None, names))


def cuts(module: nn.Module) -> dict[str, Cut]:
    """How each split parameter of `module` is cut, by its full name."""
    return {
        join(prefix, name): cut
        for prefix, child in module.named_modules()
        for name, cut in getattr(child, "cuts", {}).items()
    }


def shard(
    state: Mapping[str, Tensor] | nn.Module, like: nn.Module, comm: Comm
) -> dict[str, Tensor]:
    """This rank's part of a serial model's state dict (or of the model), for `like.load_state_dict`. No message.

    Raises ValueError for a name that is missing or too much, and for a shape that is not that of the whole.
    """
    whole = state.state_dict() if isinstance(state, nn.Module) else state
    mine, how = like.state_dict(), cuts(like)
    if whole.keys() != mine.keys():
        missing, unknown = sorted(mine.keys() - whole.keys()), sorted(whole.keys() - mine.keys())
        raise ValueError(f"the two models differ: missing {missing}, unknown {unknown}")
    for name, part in mine.items():
        cut = how.get(name)
        expected = (
            tuple(part.shape) if cut is None else cut.shape(tuple(part.shape), sum(cut.sizes))
        )
        if tuple(whole[name].shape) != expected:
            raise ValueError(
                f"the whole of {name} has shape {expected} here, but {describe(whole[name])} was given"
            )
    return {
        name: (how[name].part(x, comm.rank) if name in how else x).clone()
        for name, x in whole.items()
    }


@torch.no_grad()
def unshard(module: nn.Module, comm: Comm) -> dict[str, Tensor]:
    """The state dict of the serial model, on every rank: an all-gather for each parameter that is split.

    What is whole on every rank is this rank's own. All ranks must call it.
    """
    how = cuts(module)
    return {
        name: gather_from(x, comm, *how[name]) if name in how else x.clone()
        for name, x in module.state_dict().items()
    }
