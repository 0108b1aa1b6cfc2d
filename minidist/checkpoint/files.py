"""What lies on the disk: files that are there whole or not at all, tensors in them, and a manifest that vouches for both.

    000007-step-350/                    the seventh save of a run, made at step 350
        rank-00000.safetensors          each rank writes its own file, in parallel
        rank-00001.safetensors
        manifest.json                   rank 0 writes it last, when all of them are on the disk

A folder without a manifest was never finished: nobody looks at it. One with a manifest is whole, or was damaged since:
then a size or a checksum does not fit, the manifest's own among them. The highest number in front is the newest save,
also when a run went back to an earlier step; nothing is ever written over.

Nothing that is read can be run. Tensors are in safetensors files, byte for byte what the package of that name writes:

    8 bytes    length of the header, little-endian
    header     {"__metadata__": {…}, "w": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}, …}, padded to 8
    data       the tensors without gaps, wide dtypes first, each row by row

What the package does not offer, and a checkpoint needs: a checksum taken while writing, and reading any box of a tensor
without the bytes around it. Sources: Pillai et al. 2014, "All File Systems Are Not Created Equal", section 2 (the
atomic-replace idiom); the format's description in the README of huggingface/safetensors.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Refused(ValueError):
    """A checkpoint that is damaged, or is none. The message says where and what.

    >>> import tempfile
    >>> from minidist.checkpoint import Saved
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Saved(folder)
    Traceback (most recent call last):
    minidist.checkpoint.files.Refused: ... has no manifest.json: it was not saved to the end, ...
    """


# ------------------------------------------------------------
# Atomic writes.
#
#     name.partial   written, and its checksum taken on the way
#         │ fsync    the bytes are on the disk, not in a cache
#         ▼ rename   atomic: whoever looks sees the old file, or all of the new one
#     name           fsync of the folder: its name is on the disk, too
#
# Without the first fsync a file may have its name and no bytes after a power cut; without the second, bytes and no name.


def write(path: Path, chunks: Iterable[bytes | memoryview]) -> tuple[int, str]:
    """Write a file of these bytes, whole or not at all; returns its size and its SHA-256, as `sha256sum` prints it.

    A former file of that name stays until all is written. Raises OSError, and leaves no partial file, where the disk
    does not take it.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from minidist.checkpoint.files import write
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     nbytes, digest = write(Path(folder) / "x", [b"ab", b"cd"])
    ...     print((Path(folder) / "x").read_bytes(), nbytes, digest[:8])
    b'abcd' 4 88d4266f
    """
    partial = path.with_name(path.name + ".partial")
    digest = hashlib.sha256()
    try:
        with open(partial, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
                digest.update(chunk)
            file.flush()  # from Python to the system
            os.fsync(file.fileno())  # from the system to the disk
            nbytes = file.tell()
        os.replace(partial, path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    sync_folder(path.parent)
    return nbytes, digest.hexdigest()


def sync_folder(folder: Path) -> None:
    """Return when what was named, renamed or removed in the folder is so on the disk."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


# ------------------------------------------------------------
# Tensors in a file.

# From narrow to wide, in the format's own order; files have the last first.
DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "C64": torch.complex64,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
}
CODES = {dtype: code for code, dtype in DTYPES.items()}


class Entry(NamedTuple):
    """A tensor in a file: `first` is the place of its first byte in the file.

    >>> import torch
    >>> from minidist.checkpoint.files import Entry
    >>> entry = Entry(torch.float32, shape=(3, 4), first=128)
    >>> entry.dtype.itemsize * 12  # its bytes, from 128 on
    48
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    first: int


def raw(x: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU.

    >>> import torch
    >>> from minidist.checkpoint.files import raw
    >>> bytes(raw(torch.tensor([1, 256], dtype=torch.int16)))
    b'\\x01\\x00\\x00\\x01'
    """
    return x.reshape(-1).view(torch.uint8).numpy().data


def safetensors(
    tensors: Mapping[str, Tensor], fetch: Callable[[str], Tensor] | None = None
) -> Iterator[bytes | memoryview]:
    """A file of these tensors, for `write`; at most one tensor at a time is copied.

    fetch(name): gives the values, where `tensors` only look like them, on the device meta.

    >>> import torch
    >>> from minidist.checkpoint.files import safetensors
    >>> head, data = safetensors({"w": torch.zeros(3)})
    >>> head[8:]
    b'{"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}} ...'
    >>> len(data)
    12
    """
    order = list(CODES)
    names = sorted(tensors, key=lambda name: (-order.index(tensors[name].dtype), name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        x, first = tensors[name], end
        end += x.nbytes
        header[name] = {
            "dtype": CODES[x.dtype],
            "shape": list(x.shape),
            "data_offsets": [first, end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        x = fetch(name) if fetch else tensors[name]
        yield raw(x.detach().to("cpu").contiguous())


def read_header(file: BufferedReader) -> dict[str, Entry]:
    """Where each tensor lies in an open file. Raises Refused for one that is truncated, or no safetensors file.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import torch
    >>> from minidist.checkpoint.files import read_header, safetensors, write
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "x.safetensors"
    ...     _ = write(path, safetensors({"w": torch.zeros(3, 4), "b": torch.zeros(3)}))
    ...     with open(path, "rb") as file:
    ...         entries = read_header(file)
    >>> {name: entry.shape for name, entry in entries.items()}
    {'b': (3,), 'w': (3, 4)}
    """
    try:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(_read(file, 0, bytearray(8)), "little")
        if length > size - 8:
            raise ValueError(f"a header of {length} bytes does not fit into {size}")
        header = json.loads(bytes(_read(file, 8, bytearray(length))))
        header.pop("__metadata__", None)
        entries, end = {}, 0
        for name, tensor in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            entry = Entry(DTYPES[tensor["dtype"]], tuple(tensor["shape"]), 8 + length + end)
            stop = end + math.prod(entry.shape) * entry.dtype.itemsize
            if tensor["data_offsets"] != [end, stop]:
                raise ValueError(f"{name} lies at {tensor['data_offsets']}, not at {[end, stop]}")
            entries[name], end = entry, stop
        if 8 + length + end != size:
            raise ValueError(f"it has {size} bytes, its header speaks of {8 + length + end}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Refused(f"{file.name} is no whole safetensors file: {error}") from error
    return entries


def read_box(
    file: BufferedReader, entry: Entry, first: tuple[int, ...], size: tuple[int, ...]
) -> Tensor:
    """Read `size` elements of a tensor in each dimension, from `first` on: their bytes, and no others.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import torch
    >>> from minidist.checkpoint.files import read_box, read_header, safetensors, write
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "x.safetensors"
    ...     _ = write(path, safetensors({"w": torch.arange(16).view(4, 4)}))
    ...     with open(path, "rb") as file:
    ...         read_box(file, read_header(file)["w"], first=(1, 1), size=(2, 2)).tolist()
    [[5, 6], [9, 10]]
    """
    box = torch.empty(size, dtype=entry.dtype)
    view, width = raw(box), entry.dtype.itemsize
    done = 0
    for start, count in ranges(entry.shape, first, size):
        _read(file, entry.first + start * width, view[done : done + count * width])
        done += count * width
    return box


def ranges(
    shape: tuple[int, ...], first: tuple[int, ...], size: tuple[int, ...]
) -> Iterator[tuple[int, int]]:
    """(start, count) of the elements of a box that lie together, in a tensor of this shape, row by row.

    (4, 4), from (1, 1), size (2, 2):    . . . .
                                         . 5 6 .     (5, 2)
                                         . 9 a .     (9, 2)

    >>> from minidist.checkpoint.files import ranges
    >>> list(ranges((4, 4), first=(1, 1), size=(2, 2)))
    [(5, 2), (9, 2)]
    """
    if size[1:] == shape[1:]:  # whole rows
        row = math.prod(shape[1:])
        yield (first[0] * row, size[0] * row) if shape else (0, 1)
        return
    for i in range(first[0], first[0] + size[0]):
        for start, count in ranges(shape[1:], first[1:], size[1:]):
            yield i * math.prod(shape[1:]) + start, count


def _read(file: BufferedReader, first: int, into: bytearray | memoryview) -> bytearray | memoryview:
    """Fill `into` with the file's bytes from `first` on. ValueError where it ends before."""
    file.seek(first)
    if file.readinto(into) < len(into):
        raise ValueError("it ends too early")
    return into


# ------------------------------------------------------------
# The manifest, and the folders of a run.

MANIFEST = "manifest.json"
FORMAT, VERSION = "minidist checkpoint", 2
FOLDER = re.compile(r"(\d{6,})-step-(\d+)")


def file_of(rank: int) -> str:
    """The name of a rank's file.

    >>> from minidist.checkpoint.files import file_of
    >>> file_of(3)
    'rank-00003.safetensors'
    """
    return f"rank-{rank:05}.safetensors"


def write_manifest(folder: Path, body: dict[str, Any]) -> None:
    """Finish a checkpoint: write its manifest, with a checksum of its own, and make its name lasting.

    body: {"step", "grid": {axis: ranks}, "files": {name: (bytes, SHA-256)}, "tensors": {name: {"dtype", "shape",
    "pieces": [[file, first, size], …]}}}, of which files and tensors are what `reshard.Saved` looks at.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from minidist.checkpoint.files import finished, read_manifest, write_manifest
    >>> with tempfile.TemporaryDirectory() as runs:
    ...     folder = Path(runs) / "000001-step-7"
    ...     folder.mkdir()
    ...     write_manifest(folder, {"step": 7, "grid": {"ranks": 2}, "files": {}, "tensors": {}})
    ...     len(finished(Path(runs))), read_manifest(folder)["grid"]
    (1, {'ranks': 2})
    """
    body = {"format": FORMAT, "version": VERSION, **body}
    text = json.dumps({**body, "sha256": _digest(body)}, separators=(",", ":"))
    write(folder / MANIFEST, [text.encode()])
    sync_folder(folder.parent)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The body of a checkpoint's manifest. Raises Refused for one that is missing, damaged, or not ours.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from minidist.checkpoint.files import read_manifest
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "manifest.json").write_text('{"format": "another"}')
    ...     read_manifest(Path(folder))
    Traceback (most recent call last):
    minidist.checkpoint.files.Refused: ... is not a minidist checkpoint's
    """
    path = folder / MANIFEST
    try:
        body = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise Refused(
            f"{folder} has no {MANIFEST}: it was not saved to the end, or is no checkpoint"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise Refused(f"{path} cannot be read: {error}") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise Refused(f"{path} is not a {FORMAT}'s")
    if body.get("version") != VERSION:
        raise Refused(f"{path} has version {body.get('version')}, this is version {VERSION}")
    if body.pop("sha256", None) != _digest(body):
        raise Refused(f"{path} is damaged: its checksum does not fit")
    return body


def _digest(body: dict) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def verify(path: Path, nbytes: int, digest: str) -> None:
    """Read a file to the last byte. Raises Refused for one that is missing, cut off or changed.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from minidist.checkpoint.files import verify, write
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "x"
    ...     nbytes, digest = write(path, [b"abcd"])
    ...     path.write_bytes(b"abce")  # a byte was changed
    ...     verify(path, nbytes, digest)
    Traceback (most recent call last):
    minidist.checkpoint.files.Refused: ... is damaged: its checksum does not fit
    """
    try:
        size = path.stat().st_size
        if size != nbytes:
            raise Refused(f"{path} has {size} bytes, the manifest says {nbytes}")
        with open(path, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise Refused(f"{path} is damaged: its checksum does not fit")
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error}") from error


def begun(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the newest last, with those that were not saved to the end.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from minidist.checkpoint.files import begun, finished
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (Path(folder) / "000001-step-10").mkdir()
    ...     len(begun(Path(folder))), len(finished(Path(folder)))
    (1, 0)
    """
    if not folder.is_dir():
        return []
    folders = [path for path in folder.iterdir() if FOLDER.fullmatch(path.name) and path.is_dir()]
    return sorted(folders, key=serial_and_step)


def finished(folder: Path) -> list[Path]:
    """The checkpoints in a folder that were saved to the end, the newest last.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from minidist import World
    >>> from minidist.checkpoint import Checkpoints
    >>> from minidist.checkpoint.files import finished
    >>> def program(comm, folder):
    ...     for step in (10, 20, 30):
    ...         Checkpoints(folder, comm, keep=2).save(step)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = World(1).run(program, folder)
    ...     [path.name for path in finished(Path(folder))]
    ['000002-step-20', '000003-step-30']
    """
    return [path for path in begun(folder) if (path / MANIFEST).is_file()]


def serial_and_step(path: Path) -> tuple[int, int]:
    """Which save of its run a checkpoint is, and at which step it was made, by its name.

    >>> from pathlib import Path
    >>> from minidist.checkpoint.files import serial_and_step
    >>> serial_and_step(Path("000007-step-350"))
    (7, 350)
    """
    serial, step = path.name.split("-step-")
    return int(serial), int(step)
