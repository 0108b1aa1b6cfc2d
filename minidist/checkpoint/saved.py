"""A checkpoint to read: of each wanted piece, the overlapping bytes, from whichever files have them.

    whole     0         2         4         6
    saved     [ file 0       |      file 1       ]      what is wanted, minus what the first file has,
    wanted    [ rank 0  | rank 1 |  rank 2       ]      minus what the second has: nothing may be left

Each byte is read once, also where several files have it. Nothing is gathered: a rank needs memory for its own parts
alone. No Comm is needed: a single process reads a checkpoint of any number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, closing
from pathlib import Path

import torch
from torch import Tensor

from . import disk, manifest
from .boxes import Box, minus, overlap
from .format import CODES, File, chunks
from .piece import Piece, piece


class Saved:
    """The checkpoint in `path`.  step, grid: as it was saved.  names: of its whole tensors.

    Raises Refused for a folder that is no checkpoint, or one whose manifest is damaged. Its files are not looked at
    yet: `verify` reads them all.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._manifest = manifest.read(self.path)
        self.step, self.grid = self._manifest.step, self._manifest.grid
        self.names = list(self._manifest.tensors)

    def verify(self, first: int = 0, step: int = 1) -> None:
        """Read every `step`-th file, from the `first` on. Raises Refused for one that is not as it was written."""
        files = list(self._manifest.files.items())[first::step]
        manifest.verify(self.path, dict(files))

    def __contains__(self, name: str) -> bool:
        return name in self._manifest.tensors

    def _tensor(self, name: str) -> dict:
        if name not in self:
            near = [other for other in self.names if other.split("/")[0] == name.split("/")[0]]
            raise ValueError(
                f"{self.path} has no {name}; it has {len(self.names)} tensors, {(near or self.names)[:4]} "
                "among them"
            )
        return self._manifest.tensors[name]

    def dtype(self, name: str) -> torch.dtype:
        """That of a whole tensor."""
        return CODES[self._tensor(name)["dtype"]]

    def shape(self, name: str) -> tuple[int, ...]:
        """That of a whole tensor."""
        return tuple(self._tensor(name)["shape"])

    @torch.no_grad()
    def read(self, pieces: Iterable[Piece]) -> None:
        """Fill the values of these pieces. Raises ValueError for a tensor that the checkpoint does not have, or has in
        another shape or dtype; then none was filled."""
        pieces = list(pieces)
        for one in pieces:
            mine, saved = (
                (tuple(one.whole), one.values.dtype),
                (self.shape(one.name), self.dtype(one.name)),
            )
            if mine != saved:
                raise ValueError(
                    f"{one.name} is {mine[0]} {mine[1]} here, and {saved[0]} {saved[1]} in {self.path}"
                )
        with ExitStack() as stack:
            files: dict[str, File] = {}
            for one in pieces:
                self._fill(one, files, stack)

    def _fill(self, wanted: Piece, files: dict[str, File], stack: ExitStack) -> None:
        rest = [wanted.box] if wanted.values.numel() else []
        for name, box in self._manifest.boxes(wanted.name):
            for part in filter(None, [overlap(one, box) for one in rest]):
                if name not in files:
                    files[name] = stack.enter_context(closing(self._open(name)))
                wanted.sub(part).copy_(self._part(files[name], wanted, box, part))
            rest = [left for one in rest for left in minus(one, box)]

    def _open(self, name: str) -> File:
        try:
            return File(self.path / name)
        except (OSError, ValueError) as error:
            raise manifest.Refused(f"{self.path / name} cannot be read: {error}") from error

    @staticmethod
    def _part(file: File, wanted: Piece, box: Box, part: Box) -> Tensor:
        """A part of what the file has as `box` of a whole tensor."""
        key, entry = manifest.key(wanted.name, wanted.whole, box), (wanted.values.dtype, box.size)
        if key not in file.entries or file.entries[key][:2] != entry:
            raise manifest.Refused(
                f"{file.path} has no {key} of {entry}, of which its manifest speaks"
            )
        return file.read(key, part.within(box))

    def whole(self, name: str) -> Tensor:
        """A whole tensor, on the CPU."""
        x = torch.empty(self.shape(name), dtype=self.dtype(name))
        self.read([piece(name, x)])
        return x

    def export(self, path: str | Path, prefix: str = "model/") -> None:
        """One safetensors file of all whole tensors whose names begin with `prefix`, named without it. For one process.

        A parameter with two names has its first one, as `safetensors.torch.load_model` expects. Raises ValueError
        where no tensor is called so. In memory is one tensor at a time.
        """
        names = {name.removeprefix(prefix): name for name in self.names if name.startswith(prefix)}
        if not names:
            raise ValueError(
                f"{self.path} has {len(self.names)} tensors, none of which begins with {prefix!r}"
            )
        like = {
            short: torch.empty(self.shape(name), dtype=self.dtype(name), device="meta")
            for short, name in names.items()
        }
        disk.write(
            Path(path), chunks(like, {"format": "pt"}, lambda short: self.whole(names[short]))
        )
