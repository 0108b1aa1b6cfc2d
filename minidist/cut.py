"""How a parameter is cut: along which dimension, and how much of it each rank has.

A split module says it of each of its parameters: `module.cuts = {"weight": Cut(0, [3, 3, 2]), …}`. What is not named
there is whole on every rank.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from .split import bounds


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
