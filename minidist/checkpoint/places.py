"""Where each parameter of a rank lies in the whole one, read from the modules that split it.

    whole on every rank                 all of it
    tensor parallelism, vocabulary      a range along one dimension: `module.cuts`; fused, one range for each section
    FullySharded                        a run of elements, in the order of the parameter's memory
    both                                a run of elements of a range
    pipeline stages                     other names: each stage has its own layers

    fused over 2 ranks, [gate; up] of 4 rows each:   rank 0 has rows 0 1 and 4 5, rank 1 has 2 3 and 6 7

What is found is written down as boxes, once for a parameter and for all its states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from torch import Tensor, nn

from ..parallel.zero import FullySharded
from ..split import bounds
from .boxes import Box, overlap, runs
from .piece import Piece, piece


class Fused(NamedTuple):
    """How a module says, in `cuts`, that a parameter holds several, one after the other along `dim`, each of which is
    split: rank r has sections[i][r] of the i-th."""

    dim: int
    sections: list[list[int]]


class Run(NamedTuple):
    """Elements `first` to `end` of a rank's tensor whose dimensions, in the order of its memory, are `order`."""

    order: tuple[int, ...]
    first: int
    end: int


class Place(NamedTuple):
    """What a tensor of this rank, of shape `shape`, is of the whole `name`.

    parts: (box of this rank's tensor, where it begins in the whole).  run: the tensor is a run of elements of that.
    """

    name: str
    whole: tuple[int, ...]
    parts: tuple[tuple[Box, tuple[int, ...]], ...]
    local: tuple[int, ...]
    run: Run | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.local if self.run is None else (self.run.end - self.run.first,)

    @property
    def entire(self) -> bool:
        """Whether it is all of the whole."""
        return self.shape == self.whole and self.run is None

    def pieces(self, x: Tensor, name: str) -> list[Piece]:
        """A tensor `x` that is split as the parameter is, as pieces of a whole called `name`."""
        found = []
        for box, values in self._boxes(x):
            for part, first in self.parts:
                both = overlap(box, part)
                if both is not None:
                    at = both.within(part).moved(first).first
                    found.append(piece(name, both.within(box).view(values), self.whole, at))
        return found if math.prod(self.whole) else [piece(name, x.reshape(self.whole))]

    def _boxes(self, x: Tensor) -> Iterator[tuple[Box, Tensor]]:
        """`x` as boxes of what this rank would have if it were no run."""
        if self.run is None:
            yield Box.of(self.local), x
            return
        order, done = self.run.order, 0
        for box in runs([self.local[d] for d in order], self.run.first, self.run.end):
            values = x[done : done + box.numel].view(box.size)
            done += box.numel
            back = [order.index(d) for d in range(len(order))]
            yield Box(*(tuple(side[d] for d in back) for side in box)), values.permute(back)


def places(
    module: nn.Module,
    rename: Callable[[str], str] | None = None,
    wholes: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[Tensor, Place]:
    """The place of each parameter and each saved buffer. One with several names has the first of them.

    Names are the serial module's: without the wrapping of a FullySharded.  rename(name): what a stage of a pipeline
    calls otherwise than the whole model.  wholes: by name, the shape without padding, where the module pads.
    """
    held = dict(_held(module))
    found: dict[Tensor, Place] = {}
    for name, site, key, x in _walk(module, ""):
        if x in found:
            continue
        name = rename(name) if rename else name
        run, local = held.get(x, (None, tuple(x.shape)))
        cut = getattr(site, "cuts", {}).get(key)
        parts, whole = (
            _parts(local, cut, site.comm.rank)
            if cut
            else (((Box.of(local), (0,) * len(local)),), local)
        )
        found[x] = Place(name, tuple((wholes or {}).get(name, whole)), parts, local, run)
    return found


def _walk(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module, str, Tensor]]:
    """(name in the serial module, module, attribute, tensor) of all that a state dict has."""
    if isinstance(module, FullySharded):
        yield from _walk(module.module, prefix)
        return
    lasting = {
        key: x
        for key, x in module._buffers.items()
        if key not in module._non_persistent_buffers_set
    }
    for key, x in [*module._parameters.items(), *lasting.items()]:
        if x is not None:
            yield prefix + key, module, key, x
    for key, child in module.named_children():
        yield from _walk(child, f"{prefix}{key}.")


def _held(module: nn.Module) -> Iterator[tuple[Tensor, tuple[Run, tuple[int, ...]]]]:
    """The pieces of a FullySharded, and what they are of the rank's whole parameters."""
    for flat in (
        flat
        for m in module.modules()
        if isinstance(m, FullySharded)
        for u in m.units
        for flat in u.flats
    ):
        for h, (first, end) in zip(
            flat.held, bounds([h.shape.numel() for h in flat.held]), strict=True
        ):
            low = min(max(flat.first, first), end)
            order = sorted(range(len(h.shape)), key=lambda d: -h.strides[d])
            yield (
                h.piece,
                (Run(tuple(order), low - first, low - first + h.piece.numel()), tuple(h.shape)),
            )


def _parts(
    local: tuple[int, ...], cut, rank: int
) -> tuple[tuple[tuple[Box, tuple[int, ...]], ...], tuple[int, ...]]:
    """The parts of a tensor that is cut, and the shape of the whole."""
    sections = cut.sections if isinstance(cut, Fused) else [cut.sizes]
    found, here = [], 0
    for (begin, _), sizes in zip(bounds([sum(sizes) for sizes in sections]), sections, strict=True):
        at = lambda k: (*(0 for _ in local[: cut.dim]), k, *(0 for _ in local[cut.dim + 1 :]))
        size = (*local[: cut.dim], sizes[rank], *local[cut.dim + 1 :])
        found.append((Box(at(here), size), at(begin + bounds(sizes)[rank][0])))
        here += sizes[rank]
    if here != local[cut.dim]:
        raise ValueError(
            f"a parameter has {local[cut.dim]} along dimension {cut.dim}, its sections {here}"
        )
    return tuple(found), (*local[: cut.dim], sum(map(sum, sections)), *local[cut.dim + 1 :])
