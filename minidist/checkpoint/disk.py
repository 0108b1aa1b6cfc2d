"""Files that are there whole or not at all, whenever the machine stops.

    name.partial   written, and its checksum taken on the way
        │ fsync    the bytes are on the disk, not in a cache
        ▼ rename   atomic: whoever looks sees the old file, or all of the new one
    name           fsync of the folder: its name is on the disk, too

Without the first fsync a file may have its name and no bytes after a power cut; without the second, bytes and no name.
Source: Pillai et al. 2014, "All File Systems Are Not Created Equal", section 2 (the atomic-replace idiom).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

PARTIAL = ".partial"
STEP = 16 << 20  # bytes of one write


class Sum(NamedTuple):
    """What a file must be: its bytes, and their SHA-256 as `sha256sum` prints it."""

    nbytes: int
    sha256: str


def write(path: Path, chunks: Iterable) -> Sum:
    """A file of these bytes, one after the other; a former one of that name stays until all is written.

    Raises OSError, and leaves no partial file, where the disk does not take it.
    """
    partial = path.with_name(path.name + PARTIAL)
    digest, nbytes = hashlib.sha256(), 0
    file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        try:
            for chunk in chunks:
                view = memoryview(chunk)
                for first in range(0, len(view), STEP):
                    _all(file, view[first : first + STEP])
                digest.update(view)
                nbytes += len(view)
            os.fsync(file)
        finally:
            os.close(file)
        os.replace(partial, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
    settle(path.parent)
    return Sum(nbytes, digest.hexdigest())


def _all(file: int, view: memoryview) -> None:
    while view:
        view = view[os.write(file, view) :]


def settle(folder: Path) -> None:
    """What was named, renamed or removed in the folder is so on the disk."""
    file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def sum_of(path: Path) -> Sum:
    """That of a file which is there."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return Sum(os.fstat(file.fileno()).st_size, digest.hexdigest())


def read(file: int, view: memoryview, first: int) -> None:
    """Fill `view` with the bytes of an open file from `first` on. ValueError where it ends before."""
    while view:
        got = os.preadv(file, [view], first)
        if not got:
            raise ValueError(f"it ends {len(view)} bytes too early")
        view, first = view[got:], first + got
