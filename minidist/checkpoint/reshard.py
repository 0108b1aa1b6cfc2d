"""What of a saved tensor goes where on another grid: boxes of whole tensors, named.

All that is saved is pieces, all that is loaded as well. A piece is what a rank has of one whole tensor: a box of it.
Two boxes overlap in a box, so what a rank reads is the overlap of what it wants with what each file has:

    saved on 2 ranks                     wanted on 3
    "w" (6, 4) from (0, 0): 3 rows       "w" (6, 4) from (0, 0): 2 rows      from rank 0's file
    "w" (6, 4) from (3, 0): 3 rows       "w" (6, 4) from (2, 0): 2 rows      a row of each file
                                         "w" (6, 4) from (4, 0): 2 rows      from rank 1's

Nothing else is known of the two grids: not their sizes, nor what was cut by which technique. Nothing is gathered: a
rank reads its own parts, each byte once, in memory for these alone. No Comm is needed: one process reads a checkpoint
of any number of ranks.

A flat shard is a run of elements that begins and ends in the middle of a row. It is cut into boxes, at most 2d − 1 of
them in d dimensions, so that one rule serves all:

    elements 3 … 13 of (4, 4)      . . . 3      (0, 3) 1 × 1
                                   4 5 6 7      (1, 0) 2 × 4
                                   8 9 a b
                                   c d . .      (3, 0) 1 × 2

Source: Wan et al. 2024, "ByteCheckpoint", which cuts irregular shards into regular ones, so that they can be saved and
loaded without a message.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..parallel.zero import FullySharded
from ..split import bounds
from . import files
from .files import Refused

# ------------------------------------------------------------
# Boxes.


class Box(NamedTuple):
    """`size` elements in each dimension, from `first` on. Of a tensor without dimensions, both are ().

    >>> from minidist.checkpoint.reshard import Box
    >>> box = Box(first=(1, 0), size=(2, 4))  # rows 1 and 2
    >>> str(box), box.numel
    ('[1:3, 0:4]', 8)
    """

    first: tuple[int, ...]
    size: tuple[int, ...]

    @classmethod
    def of(cls, shape: Sequence[int]) -> Box:
        """All of a tensor of this shape."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def numel(self) -> int:
        """Elements in it."""
        return math.prod(self.size)

    def within(self, other: Box) -> Box:
        """The same box, counted from where `other` begins."""
        return Box(tuple(a - b for a, b in zip(self.first, other.first, strict=True)), self.size)

    def along(self, dim: int, first: int, size: int) -> Box:
        """The same box, but for dimension `dim`."""
        return Box(
            (*self.first[:dim], first, *self.first[dim + 1 :]),
            (*self.size[:dim], size, *self.size[dim + 1 :]),
        )

    def view(self, x: Tensor) -> Tensor:
        """This part of `x`, a view."""
        for dim, (first, size) in enumerate(zip(*self, strict=True)):
            x = x.narrow(dim, first, size)
        return x

    def __str__(self) -> str:
        return f"[{', '.join(f'{a}:{a + n}' for a, n in zip(*self, strict=True))}]"


def overlap(a: Box, b: Box) -> Box | None:
    """What is in both; None if nothing is.

    >>> from minidist.checkpoint.reshard import Box, overlap
    >>> saved, wanted = Box((0, 0), (3, 4)), Box((2, 0), (2, 4))
    >>> str(overlap(saved, wanted)), overlap(saved, Box((3, 0), (3, 4)))
    ('[2:3, 0:4]', None)
    """
    first = tuple(map(max, a.first, b.first))
    size = tuple(min(p + m, q + n) - f for p, m, q, n, f in zip(*a, *b, first, strict=True))
    return Box(first, size) if all(n > 0 for n in size) else None


def minus(a: Box, b: Box) -> Iterator[Box]:
    """What is in `a` and not in `b`, as boxes: slab by slab, at most two for each dimension.

    >>> from minidist.checkpoint.reshard import Box, minus
    >>> [str(box) for box in minus(Box((0, 0), (4, 4)), Box((1, 1), (2, 3)))]
    ['[0:1, 0:4]', '[3:4, 0:4]', '[1:3, 0:1]']
    """
    common = overlap(a, b)
    if common is None:
        yield a
        return
    for dim, (first, size) in enumerate(zip(*common, strict=True)):
        begin, end = a.first[dim], a.first[dim] + a.size[dim]
        if begin < first:
            yield a.along(dim, begin, first - begin)
        if first + size < end:
            yield a.along(dim, first + size, end - first - size)
        a = a.along(dim, first, size)


def missing(wanted: Box, there: Iterable[Box]) -> list[Box]:
    """What is wanted and not there.

    >>> from minidist.checkpoint.reshard import Box, missing
    >>> there = [Box((0,), (4,)), Box((6,), (2,))]
    >>> [str(box) for box in missing(Box((0,), (10,)), there)]
    ['[4:6]', '[8:10]']
    """
    rest = [wanted] if wanted.numel else []
    for box in there:
        rest = [left for part in rest for left in minus(part, box)]
    return rest


def runs(shape: Sequence[int], first: int, end: int) -> Iterator[Box]:
    """Elements `first` to `end` of a tensor of this shape, row by row, as boxes in the order of the elements.

    >>> from minidist.checkpoint.reshard import runs
    >>> [str(box) for box in runs((4, 4), 3, 14)]
    ['[0:1, 3:4]', '[1:3, 0:4]', '[3:4, 0:2]']
    """
    if first >= end:
        return
    if not shape:
        yield Box((), ())
        return
    row = math.prod(shape[1:])
    whole_rows = (-(-first // row) * row, end // row * row)
    for a, b in pairwise(sorted({first, end, *(k for k in whole_rows if first < k < end)})):
        i = a // row
        if a % row or b % row:
            for box in runs(shape[1:], a - i * row, b - i * row):
                yield Box((i, *box.first), (1, *box.size))
        else:
            yield Box((i, *(0 for _ in shape[1:])), (b // row - i, *shape[1:]))


# ------------------------------------------------------------
# Pieces, and where each parameter of a rank lies in the whole one, read from the modules that split it.


class Part(NamedTuple):
    """`box` of the tensor `name` of shape `whole`.  dtype: as in the safetensors format.

    >>> from minidist.checkpoint.reshard import Box, Part
    >>> half = Part("w", "F32", (6, 4), Box((3, 0), (3, 4)))
    >>> whole = Part("b", "F32", (6,), Box((0,), (6,)))
    >>> half.key, whole.key
    ('w[3:6, 0:4]', 'b')
    """

    name: str
    dtype: str
    whole: tuple[int, ...]
    box: Box

    @property
    def key(self) -> str:
        """What the part is called in a file; the whole tensor has its own name."""
        return self.name if self.box == Box.of(self.whole) else f"{self.name}{self.box}"


class Piece:
    """A part of a tensor, and its `values`, a view of what is trained: those from `first` on; by default all of it.

    whole: the shape of the whole tensor, that of `values` unless given.  first: where the values begin in it, in each
    dimension, zeros unless given.
    Raises ValueError for what does not lie within the whole, for a dtype that cannot be saved, and for a meta tensor.

    >>> import torch
    >>> from minidist.checkpoint import Piece
    >>> rows = torch.zeros(3, 4)
    >>> piece = Piece("w", rows, whole=(6, 4), first=(3, 0))  # the second half of the rows
    >>> piece.part.key
    'w[3:6, 0:4]'
    """

    def __init__(
        self,
        name: str,
        values: Tensor,
        whole: Sequence[int] | None = None,
        first: Sequence[int] | None = None,
    ):
        box = Box(tuple(first or (0 for _ in values.shape)), tuple(values.shape))
        whole = box.size if whole is None else tuple(whole)
        if not len(whole) == len(box.first) == len(box.size) or missing(box, [Box.of(whole)]):
            raise ValueError(f"{box.size} from {box.first} on is no part of {name}, {whole}")
        if values.dtype not in files.CODES:
            raise ValueError(
                f"{name} is {values.dtype}, which the safetensors format does not have"
            )
        if values.is_meta:
            raise ValueError(
                f"{name} is on the device meta: there is nothing to save, and nowhere to load to"
            )
        self.name = name
        self.first = box.first
        self.part = Part(name, files.CODES[values.dtype], whole, box)
        self.values = values.detach()


class Run(NamedTuple):
    """Elements `first` to `end` of a tensor whose dimensions, in the order of its memory, are `order`.

    >>> import torch
    >>> from minidist.checkpoint.reshard import Box, Place, Run
    >>> place = Place("w", (4, 4), Box((0, 0), (4, 4)), Run([0, 1], 3, 14))
    >>> [piece.part.key for piece in place.pieces("w", torch.zeros(11))]
    ['w[0:1, 3:4]', 'w[1:3, 0:4]', 'w[3:4, 0:2]']
    """

    order: list[int]
    first: int
    end: int


class Place(NamedTuple):
    """A rank's tensor is `box` of the tensor `name` of shape `whole`, or a run of the box's elements.

    whole on every rank                 all of it
    tensor parallelism, vocabulary      a range along one dimension: `module.cuts`
    FullySharded                        a run of elements, in the order of the parameter's memory
    both                                a run of elements of a range
    pipeline stages                     other names: each stage has its own layers

    >>> from minidist.checkpoint.reshard import Box, Place, Run
    >>> rows = Box((2, 0), (2, 4))  # rows 2 and 3 of 6
    >>> Place("w", (6, 4), rows).shape, Place("w", (6, 4), rows, Run([0, 1], 0, 4)).shape
    ((2, 4), (4,))
    """

    name: str
    whole: tuple[int, ...]
    box: Box
    run: Run | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the rank's tensor."""
        return self.box.size if self.run is None else (self.run.end - self.run.first,)

    def pieces(self, name: str, x: Tensor) -> list[Piece]:
        """A tensor `x` that is split as the parameter is, as pieces of a whole called `name`."""
        if self.run is None or not self.box.numel:
            return [Piece(name, x.view(self.box.size), self.whole, self.box.first)]
        pieces, done = [], 0
        order, first, end = self.run
        back = [order.index(dim) for dim in range(len(order))]
        for part in runs([self.box.size[dim] for dim in order], first, end):
            values = x[done : done + part.numel].view(part.size).permute(back)
            done += part.numel
            begin = [self.box.first[dim] + part.first[back[dim]] for dim in range(len(order))]
            pieces.append(Piece(name, values, self.whole, begin))
        return pieces


def places(module: nn.Module, rename: Callable[[str], str] | None = None) -> dict[Tensor, Place]:
    """The place of each parameter and each saved buffer. One with several names has the first of them.

    Names are the serial module's: without the wrapping of a FullySharded.  rename(name): what the whole model
    calls a parameter that has this name here, in a stage of a pipeline.

    >>> from minidist import World
    >>> from minidist.checkpoint.reshard import places
    >>> from minidist.parallel.tensor import ColumnLinear
    >>> def program(comm):
    ...     found = places(ColumnLinear(4, 6, comm)).values()
    ...     return [(place.name, place.whole, str(place.box)) for place in found]
    >>> World(2).run(program)[1]
    [('weight', (6, 4), '[3:6, 0:4]'), ('bias', (6,), '[3:6]')]
    """
    sharded = dict(_sharded(module))
    place_of: dict[Tensor, Place] = {}
    for name, site, key, x in _tensors(module, ""):
        if x in place_of:
            continue
        run, local = sharded.get(x, (None, tuple(x.shape)))
        whole, first = local, (0,) * len(local)
        cut = getattr(site, "cuts", {}).get(key)
        if cut:
            whole = cut.shape(local, sum(cut.sizes))
            first = cut.shape(first, bounds(cut.sizes)[site.comm.rank][0])
        place_of[x] = Place(rename(name) if rename else name, whole, Box(first, local), run)
    return place_of


def _tensors(module: nn.Module, prefix: str) -> Iterator[tuple[str, Any, str, Tensor]]:
    """(name in the serial module, module, attribute, tensor) of all that a state dict has."""
    if isinstance(module, FullySharded):
        yield from _tensors(module.module, prefix)
        return
    for key, x in [*module._parameters.items(), *module._buffers.items()]:
        if x is not None and key not in module._non_persistent_buffers_set:
            yield prefix + key, module, key, x
    for key, child in module.named_children():
        yield from _tensors(child, f"{prefix}{key}.")


def _sharded(module: nn.Module) -> Iterator[tuple[Tensor, tuple[Run, tuple[int, ...]]]]:
    """Each shard of a FullySharded in `module`: which run it is of a rank's whole parameter, and the shape of that."""
    wrapped = [m for m in module.modules() if isinstance(m, FullySharded)]
    units = [unit for m in wrapped for unit in m.units]
    for flat in [flat for unit in units for flat in unit.flats]:
        tensors = zip(flat.held, flat.shapes, flat.strides, flat.cuts, strict=True)
        for held, shape, strides, (first, end) in tensors:
            low = min(max(flat.first, first), end) - first
            order = sorted(range(len(shape)), key=strides.__getitem__, reverse=True)
            yield held.piece, (Run(order, low, low + held.piece.numel()), tuple(shape))


# ------------------------------------------------------------
# A checkpoint to read.


class Saved:
    """The checkpoint in `path`.  step, grid: as it was saved.  tensors: {name: what its manifest says of it}.

    Raises Refused for a folder that is no checkpoint, or one whose manifest is damaged. Its files are not looked at
    yet: `verify` reads them all.

    >>> import tempfile
    >>> import torch
    >>> from minidist import World
    >>> from minidist.checkpoint import Checkpoints, Piece, Saved
    >>> def program(comm, folder):
    ...     rows = torch.full((3, 2), float(comm.rank))
    ...     checkpoints = Checkpoints(folder, comm)
    ...     checkpoints.save(7, [Piece("w", rows, whole=(6, 2), first=(3 * comm.rank, 0))])
    ...     return checkpoints.latest().path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path, _ = World(2).run(program, folder)
    ...     saved = Saved(path)  # one process reads what two ranks have written
    ...     saved.verify()
    ...     print(saved.step, saved.grid, saved.whole("w").T.tolist())
    7 {'ranks': 2} [[0.0, 0.0, 0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]]
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        body = files.read_manifest(self.path)
        self.step, self.grid = body["step"], body["grid"]
        self.files, self.tensors = body["files"], body["tensors"]

    def verify(self, first: int = 0, step: int = 1) -> None:
        """Read every `step`-th file, from the `first` on. Raises Refused for one that is not as it was written."""
        for file, (nbytes, digest) in list(self.files.items())[first::step]:
            files.verify(self._file(file), nbytes, digest)

    def _file(self, name: str) -> Path:
        return self.path / Path(name).name  # whatever a manifest says, it is in this folder

    def empty(self, name: str, device: torch.device | str = "cpu") -> Tensor:
        """A tensor like the whole one called `name`, without its values. Raises ValueError where there is none."""
        if name not in self.tensors:
            some = ", ".join(list(self.tensors)[:4])
            raise ValueError(
                f"{self.path} has no {name}; it has {len(self.tensors)} tensors: {some} …"
            )
        tensor = self.tensors[name]
        return torch.empty(tensor["shape"], dtype=files.DTYPES[tensor["dtype"]], device=device)

    @torch.no_grad()
    def read(self, pieces: Iterable[Piece]) -> None:
        """Fill the values of these pieces. Raises ValueError for a tensor that the checkpoint does not have, or has in
        another shape or dtype; then none was filled.

            whole     0         2         4         6
            saved     [ file 0       |      file 1       ]      what is wanted, minus what the first file has,
            wanted    [ rank 0  | rank 1 |  rank 2       ]      minus what the second has: nothing may be left
        """
        reads = defaultdict(list)  # by file
        for piece in pieces:
            name, dtype, whole, box = piece.part
            like = self.empty(name, "meta")
            if (whole, piece.values.dtype) != (like.shape, like.dtype):
                raise ValueError(
                    f"{name} is {whole} {piece.values.dtype} here, and {tuple(like.shape)} {like.dtype} in {self.path}"
                )
            rest = [box]
            for file, first, size in self.tensors[name]["pieces"]:
                saved = Part(name, dtype, whole, Box(tuple(first), tuple(size)))
                for common in filter(None, [overlap(left, saved.box) for left in rest]):
                    reads[file].append((saved, common, common.within(box).view(piece.values)))
                rest = [left for wanted in rest for left in minus(wanted, saved.box)]
            if box.numel and rest:
                raise Refused(f"{self.path} has no {rest[0]} of {name}")
        for file, wanted in reads.items():
            self._read_file(self._file(file), wanted)

    def _read_file(self, path: Path, wanted: list[tuple[Part, Box, Tensor]]) -> None:
        """Fill each tensor with a box of what is saved as a part in this file."""
        try:
            with open(path, "rb") as file:
                entries = files.read_header(file)
                for part, box, values in wanted:
                    entry = entries.get(part.key)
                    if entry is None or entry[:2] != (values.dtype, part.box.size):
                        raise Refused(f"{path} has no {part.key}, of which its manifest speaks")
                    values.copy_(files.read_box(file, entry, *box.within(part.box)))
        except OSError as error:
            raise Refused(f"{path} cannot be read: {error}") from error

    def whole(self, name: str) -> Tensor:
        """A whole tensor, on the CPU. Raises ValueError where there is none of this name, Refused where a file cannot
        be read.
        """
        x = self.empty(name)
        self.read([Piece(name, x)])
        return x

    def export(self, path: str | Path, prefix: str = "model/") -> None:
        """Write one safetensors file of all whole tensors whose names begin with `prefix`, named without it.

        For one process. A parameter with two names has its first one, as `safetensors.torch.load_model` expects. In
        memory is one tensor at a time. Raises ValueError where no tensor is called so.
        """
        names = [name for name in self.tensors if name.startswith(prefix)]
        if not names:
            raise ValueError(
                f"{self.path} has {len(self.tensors)} tensors, none of which begins with {prefix!r}"
            )
        likes = {name.removeprefix(prefix): self.empty(name, "meta") for name in names}
        files.write(Path(path), files.safetensors(likes, lambda short: self.whole(prefix + short)))
