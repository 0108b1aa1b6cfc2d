"""Manifests that were changed, cut off, or are somebody else's."""

import json
from hashlib import sha256

import pytest

from minidist.checkpoint import disk, manifest
from minidist.checkpoint.boxes import Box
from minidist.checkpoint.manifest import Manifest, Refused

FILE = "rank-00000.safetensors"
SUM = disk.Sum(3, sha256(b"abc").hexdigest())
W = {"dtype": "F32", "shape": [4, 2], "pieces": [[FILE, [0, 0], [1, 2]], [FILE, [1, 0], [3, 2]]]}


def made(**more):
    return Manifest(
        **{"step": 3, "grid": {"dp": 1}, "files": {FILE: SUM}, "tensors": {"w": W}} | more
    )


def signed(**more):
    """A manifest with a checksum that fits, whatever it says."""
    body = {k: v for k, v in json.loads(made().text()).items() if k != "sha256"} | more
    return json.dumps(
        {**body, "sha256": sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()}
    ).encode()


def test_there_and_back(tmp_path):
    (tmp_path / manifest.NAME).write_bytes(made().text())
    found = manifest.read(tmp_path)
    assert found == made()
    assert found.boxes("w") == [(FILE, Box((0, 0), (1, 2))), (FILE, Box((1, 0), (3, 2)))]
    (tmp_path / manifest.NAME).write_bytes(signed())
    assert manifest.read(tmp_path) == made()


def test_a_changed_byte_is_refused(tmp_path):
    text = made().text()
    for i in range(0, len(text), 2):
        (tmp_path / manifest.NAME).write_bytes(text[:i] + bytes([text[i] ^ 1]) + text[i + 1 :])
        with pytest.raises(Refused, match="manifest"):
            manifest.read(tmp_path)


def test_a_truncation_is_refused(tmp_path):
    text = made().text()
    for end in range(0, len(text), 2):
        (tmp_path / manifest.NAME).write_bytes(text[:end])
        with pytest.raises(Refused, match="cannot be read"):
            manifest.read(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[]", "is not a minidist checkpoint's"),
        (b'{"weight_map": {}}', "is not a minidist checkpoint's"),
        (b"\x80\x04\x95pickle", "cannot be read"),
        (b"[" * 9000, "cannot be read"),
        (signed(version=2), "has version 2, this is version 1"),
        (signed(files=[]), "is no manifest"),
        (signed(files={"../../secret": SUM}), "secret' of 3 bytes is no file of a checkpoint"),
        (signed(files={"rank-00000.pt": SUM}), "is no file of a checkpoint"),
        (signed(files={FILE: [3]}), "is no manifest"),
        (signed(files={}), "is no manifest"),
        (signed(tensors={"w": W | {"dtype": "F33"}}), "is no manifest"),
        (signed(tensors={"w": W | {"shape": [5, 2]}}), r"w has no \[4:5, 0:2\]"),
        (signed(tensors=[]), "is no manifest"),
        (
            signed(tensors={"w": W | {"shape": [4.0, 2]}}),
            r"w, \(4.0, 2\), has no part \[0:1, 0:2\]",
        ),
        (signed(tensors={"w": W | {"shape": [3, 2]}}), r"w, \(3, 2\), has no part \[1:4, 0:2\]"),
        (
            signed(tensors={"w": W | {"pieces": [[FILE, [4, 0], [-4, 2]]]}}),
            r"has no part \[4:0, 0:2\]",
        ),
        (signed(tensors={"w": W | {"pieces": [[FILE, [0], [4]]]}}), "is no manifest"),
        (signed(files={FILE: [-3, SUM.sha256]}), "of -3 bytes is no file"),
        (signed(grid=None), "is no manifest"),
        (signed(grid={"dp": 0}), "step 3 of the grid {'dp': 0}"),
        (signed(grid=[1]), "is no manifest"),
        *(
            (signed(step=step), f"step {step!r} of the grid")
            for step in (-1, True, "x", 2.0, float("nan"))
        ),
    ],
)
def test_others_are_refused(tmp_path, content, words):
    (tmp_path / manifest.NAME).write_bytes(content)
    with pytest.raises(Refused, match=words):
        manifest.read(tmp_path)


def test_a_folder_without_one(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(
            Refused, match=r"has no manifest.json: it was not saved to the end, or is no checkpoint"
        ):
            manifest.read(folder)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"abd", "is damaged: its checksum does not fit"),
        (b"ab", "has 2 bytes, the manifest says 3"),
        (b"abcd", "has 4 bytes, the manifest says 3"),
        (None, "cannot be read"),
    ],
)
def test_files_are_verified(tmp_path, content, words):
    (tmp_path / FILE).write_bytes(b"abc")
    manifest.verify(tmp_path, {FILE: SUM})
    (tmp_path / FILE).unlink()
    if content is not None:
        (tmp_path / FILE).write_bytes(content)
    with pytest.raises(Refused, match=f"{FILE} {words}"):
        manifest.verify(tmp_path, {FILE: SUM})


def test_the_newest_is_the_last_save(tmp_path):
    assert manifest.every(tmp_path / "none") == []
    for name in (
        "000009-step-50",
        "1000000-step-1",
        "000010-step-20",
        "step-90",
        "000011-step-60.old",
        "x",
    ):
        (tmp_path / name).mkdir()
    (tmp_path / "000012-step-70").write_text("a file")
    for name in ("1000000-step-1", "000009-step-50", "x"):
        (tmp_path / name / manifest.NAME).write_text("")
    assert [path.name for path in manifest.every(tmp_path)] == [
        "000009-step-50",
        "000010-step-20",
        "1000000-step-1",
    ]
    assert [path.name for path in manifest.finished(tmp_path)] == [
        "000009-step-50",
        "1000000-step-1",
    ]
