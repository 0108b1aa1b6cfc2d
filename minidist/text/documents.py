"""Documents: the Python language reference, which CPython brings along, or text files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def documents(paths: Iterable[str | os.PathLike] = ()) -> list[str]:
    """One text for each file, and for each file below a folder, in the order of their names.

    Without `paths`: the topics of the Python language reference as help() shows them, always the same with one version
    of CPython. Raises ValueError for a file that is not UTF-8, a folder without files, and texts without a character.
    """
    found = (
        [text for path in paths for text in _texts(Path(path))]
        if (paths := list(paths))
        else _reference()
    )
    if not any(found):
        raise ValueError(
            f"{len(found)} documents with 0 characters: there is nothing to learn from"
        )
    return found


def _reference() -> list[str]:
    from pydoc_data.topics import topics

    return [topics[name] for name in sorted(topics)]


def _texts(path: Path) -> list[str]:
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"0 files below {path}")
    return [_text(file) for file in files]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise ValueError(
            f"{file} is not a text in UTF-8: byte {error.start} is {byte:#x}"
        ) from None
