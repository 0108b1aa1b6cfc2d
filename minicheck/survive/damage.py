"""What can be wrong with a checkpoint: each function does it to one, in a dict of files."""

from __future__ import annotations

import json
import pickle
from zlib import crc32


def _edit(disk: dict, step: int, without: str = "", **changes) -> None:
    """Other entries in a manifest that stays readable."""
    name = f"{step}/manifest"
    body = json.loads(disk[name]) | changes
    disk[name] = json.dumps(
        {word: value for word, value in body.items() if word != without}
    ).encode()


def _parts(files: dict, step: int) -> list[str]:
    return [f"{step}/rank-{r}" for r in range(json.loads(files[f"{step}/manifest"])["ranks"])]


def _older(files: dict, step: int) -> int:
    """A step whose checkpoint is left as it is, before the damaged ones."""
    return sorted({int(name.split("/")[0]) for name in files} - {step})[1]


def _cut(files, step):
    files[f"{step}/rank-0"] = files[f"{step}/rank-0"][:-1]


def _flip(files, step):
    name = _parts(files, step)[-1]
    data = bytearray(files[name])
    data[len(data) // 2] ^= 1
    files[name] = bytes(data)


def _gone(files, step):
    del files[f"{step}/rank-1"]


def _unfinished(files, step):
    """What a good save leaves when the power fails before its last call."""
    files[f"{step}/manifest.partial"] = files.pop(f"{step}/manifest")


def _manifest_cut(files, step):
    files[f"{step}/manifest"] = files[f"{step}/manifest"][:-7]


def _foreign(files, step):
    files[f"{step}/manifest"] = files[f"{_older(files, step)}/manifest"]


def _rank_unlisted(files, step):
    sums = json.loads(files[f"{step}/manifest"])["files"]
    _edit(files, step, files={name: sums[name] for name in _parts(files, step)[:-1]})


def _elsewhere(files, step):
    """A manifest that names the parts of another checkpoint, which are whole."""
    parts = _parts(files, _older(files, step))
    _edit(files, step, files={part: [len(files[part]), crc32(files[part])] for part in parts})


def _pickled(files, step):
    name = f"{step}/manifest"
    files[name] = pickle.dumps(json.loads(files[name]))


def _program(files, step):
    """Python that gives the right dictionary, and does something else on the way."""
    name = f"{step}/manifest"
    files[name] = b"print('hello') or " + files[name]


def _a_list(files, step):
    files[f"{step}/manifest"] = b'["step", "ranks", "files"]'


def _nothing(files, step):
    """It stays as it is."""


def _wrong_all(files, step):
    _cut(files, step)
    _flip(files, step)


DAMAGE = {
    "nothing is wrong": _nothing,
    "a part is cut off": _cut,
    "a bit of a part is flipped": _flip,
    "a part is gone": _gone,
    "a save was not finished": _unfinished,
    "a manifest is cut off": _manifest_cut,
    "a manifest of another step": _foreign,
    "a manifest that lists all ranks but one": _rank_unlisted,
    "a manifest that lists another step's parts": _elsewhere,
    "a manifest that was pickled": _pickled,
    "a manifest that is a program": _program,
    "a manifest that is a list": _a_list,
    "two parts are damaged": _wrong_all,
}
DAMAGE |= {
    f"a manifest without {word}": lambda files, step, word=word: _edit(files, step, word)
    for word in ("step", "ranks", "files")
}
