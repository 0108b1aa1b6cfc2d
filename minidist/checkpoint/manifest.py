"""The manifest: which files a checkpoint has, what they must be, and where in them each tensor lies. Written last.

    000007-step-350/
        rank-00000.safetensors      each rank its own, in parallel
        rank-00001.safetensors
        manifest.json               by rank 0, when all of them are on the disk

A folder without a manifest was never finished: nobody looks at it. One with a manifest is whole, or was damaged since:
then a size or a checksum does not fit, the manifest's own among them. The number in front counts the saves: the highest
is the newest, also when a run went back to an earlier step; nothing is ever written over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from . import disk
from .boxes import Box, missing
from .format import CODES

NAME = "manifest.json"
FORMAT, VERSION = "minidist checkpoint", 1
FOLDER = re.compile(r"(\d{6,})-step-(\d+)")
FILE = re.compile(r"rank-\d{5,}\.safetensors")


class Refused(ValueError):
    """A checkpoint that is damaged, or is none. The message says where and what."""


@dataclass
class Manifest:
    """step: as it was saved.  grid: {axis: ranks}.  files: {name: Sum}.

    tensors: {name: {"dtype", "shape", "pieces": [[file, first, size], …]}}; dtype as in the safetensors format.
    """

    step: int
    grid: dict[str, int]
    files: dict[str, disk.Sum]
    tensors: dict[str, dict[str, Any]]

    def text(self) -> bytes:
        body = {"format": FORMAT, "version": VERSION, **asdict(self)}
        return json.dumps({**body, "sha256": _digest(body)}, separators=(",", ":")).encode()

    def boxes(self, name: str) -> list[tuple[str, Box]]:
        """(file, box) of each piece of a tensor."""
        return [
            (file, Box(tuple(first), tuple(size)))
            for file, first, size in self.tensors[name]["pieces"]
        ]


def _digest(body: dict) -> str:
    return sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def file_of(rank: int) -> str:
    return f"rank-{rank:05}.safetensors"


def key(name: str, whole: Iterable[int], box: Box) -> str:
    """What a piece is called in its file; the whole tensor has its own name."""
    return name if box == Box.of(tuple(whole)) else f"{name}{box}"


def read(folder: Path) -> Manifest:
    """The manifest of a checkpoint. Raises Refused for one that is missing, damaged, or not ours."""
    path = folder / NAME
    try:
        body = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise Refused(
            f"{folder} has no {NAME}: it was not saved to the end, or is no checkpoint"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise Refused(f"{path} cannot be read: {error}") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise Refused(f"{path} is not a {FORMAT}'s")
    if body.get("version") != VERSION:
        raise Refused(f"{path} has version {body.get('version')}, this is version {VERSION}")
    if body.pop("sha256", None) != _digest(body):
        raise Refused(f"{path} is damaged: its checksum does not fit")
    try:
        found = Manifest(
            body["step"],
            body["grid"],
            {name: disk.Sum(*one) for name, one in body["files"].items()},
            body["tensors"],
        )
        _check(found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Refused(f"{path} is no manifest: {error!r}") from error
    return found


def _check(found: Manifest) -> None:
    """ValueError for files elsewhere, dtypes and counts that there are not, and tensors with holes."""
    if not _counts(found.step) or not _counts(*found.grid.values()) or 0 in found.grid.values():
        raise ValueError(f"step {found.step!r} of the grid {found.grid}")
    for file, (nbytes, _) in found.files.items():
        if not FILE.fullmatch(file) or not _counts(nbytes):
            raise ValueError(f"{file!r} of {nbytes!r} bytes is no file of a checkpoint")
    for name, tensor in found.tensors.items():
        if (
            tensor["dtype"] not in CODES
            or not {file for file, _ in found.boxes(name)} <= found.files.keys()
        ):
            raise ValueError(f"{name} has a dtype or a file that is not known: {tensor}")
        whole = Box.of(tensor["shape"])
        for _, box in found.boxes(name):
            if not _counts(*whole.size, *box.first, *box.size) or missing(box, [whole]):
                raise ValueError(f"{name}, {whole.size}, has no part {box}")
        holes = missing(whole, (box for _, box in found.boxes(name)))
        if holes:
            raise ValueError(f"{name} has no {holes[0]}")


def _counts(*numbers: Any) -> bool:
    """Whether these are whole numbers, from 0 on; true and 2.0 are none."""
    return all(type(number) is int and number >= 0 for number in numbers)


def verify(folder: Path, files: dict[str, disk.Sum]) -> None:
    """Read these files, to the last byte. Raises Refused for one that is missing, cut off or changed."""
    for file, wanted in files.items():
        try:
            nbytes = (folder / file).stat().st_size
            if nbytes != wanted.nbytes:
                raise Refused(
                    f"{folder / file} has {nbytes} bytes, the manifest says {wanted.nbytes}"
                )
            if disk.sum_of(folder / file) != wanted:
                raise Refused(f"{folder / file} is damaged: its checksum does not fit")
        except OSError as error:
            raise Refused(f"{folder / file} cannot be read: {error}") from error


def finished(folder: Path) -> list[Path]:
    """The checkpoints in a folder that were saved to the end, the newest last."""
    return [path for path in every(folder) if (path / NAME).is_file()]


def every(folder: Path) -> list[Path]:
    """Those that were begun, too."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if FOLDER.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=serial)


def serial(path: Path) -> int:
    """Which save it was."""
    return int(FOLDER.fullmatch(path.name)[1])
