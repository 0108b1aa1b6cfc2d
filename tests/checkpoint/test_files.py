"""What is on the disk, and in which order it came there; tensors in files; manifests."""

import errno
import json
import os
import struct
from hashlib import sha256

import pytest
import safetensors.torch
import torch

from minidist.checkpoint import Refused, files
from minidist.checkpoint.reshard import Box

# ------------------------------------------------------------
# What is on the disk, and in which order it came there.


CHUNKS = [b"head", memoryview(bytearray(range(200))), b"", b"tail"]
WHOLE = b"".join(CHUNKS)


def test_sums(tmp_path):
    found = files.write(tmp_path / "file", CHUNKS)
    assert (tmp_path / "file").read_bytes() == WHOLE
    assert found == (len(WHOLE), sha256(WHOLE).hexdigest())
    files.verify(tmp_path / "file", *found)


def test_the_order(tmp_path, monkeypatch):
    """All bytes are with the system when it is told to put them on the disk; then comes the name."""
    seen, folders = [], set()

    def watch(name, say):
        real = getattr(os, name)

        def wrapped(*args, **kwargs):
            result = real(*args, **kwargs)
            seen.append(say(args, result))
            return result

        monkeypatch.setattr(os, name, wrapped)

    def opened(args, file):
        folders.add(file)
        return f"open {os.path.basename(args[0])}"

    def synced(args, _):
        if args[0] in folders:
            return "fsync folder"
        return f"fsync {os.fstat(args[0]).st_size} bytes"

    watch("open", opened)
    watch("fsync", synced)
    watch("replace", lambda args, _: f"rename to {os.path.basename(args[1])}")
    files.write(tmp_path / "file", [b"a", b"b"])
    assert seen == [
        "fsync 2 bytes",
        "rename to file",
        f"open {tmp_path.name}",
        "fsync folder",
    ]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, call):
    files.write(tmp_path / "file", [b"old"])

    def full(*args):
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as m:
        m.setattr(os, call, full)
        with pytest.raises(OSError, match="no space left"):
            files.write(tmp_path / "file", CHUNKS)
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_disk_that_is_full_in_the_middle(tmp_path):
    def chunks():
        yield b"new"
        raise OSError(errno.ENOSPC, "no space left")

    files.write(tmp_path / "file", [b"old"])
    with pytest.raises(OSError, match="no space left"):
        files.write(tmp_path / "file", chunks())
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_reading_beyond_the_end(tmp_path):
    (tmp_path / "file").write_bytes(b"abcdef")
    entry = files.Entry(torch.uint8, (6,), 2)
    with open(tmp_path / "file", "rb") as file:
        assert bytes(files.read_box(file, entry, (0,), (3,)).tolist()) == b"cde"
        with pytest.raises(ValueError, match="it ends too early"):
            files.read_box(file, entry, (2,), (3,))


# ------------------------------------------------------------
# Our files against the safetensors package: byte for byte, both ways; and files that are none.


RANDOM = torch.Generator().manual_seed(0)


def many():
    """Tensors of all dtypes, and of shapes that hurt."""
    found = {}
    for dtype in files.CODES:
        x = torch.randint(0, 2, (3, 5), generator=RANDOM)
        found[f"of {dtype}"] = x.to(dtype)
    big = torch.randn(4, 3, 5, generator=RANDOM)
    return found | {
        "": torch.ones(2),
        'ünï"\n': big,
        "number": torch.tensor(3.5),
        "none": torch.zeros(0, 4),
        "half": torch.randn(7, generator=RANDOM).bfloat16(),
    }


def written(path, tensors):
    path.write_bytes(b"".join(files.safetensors(tensors)))
    return path


def entries_of(path):
    with open(path, "rb") as file:
        return files.read_header(file)


def read(path, name, box=None):
    """A box of a tensor, or all of it."""
    with open(path, "rb") as file:
        entry = files.read_header(file)[name]
        return files.read_box(file, entry, *(box or Box.of(entry.shape)))


def test_the_same_bytes_as_the_package(tmp_path):
    for tensors in (many(), {}):
        ours = written(tmp_path / "ours", tensors).read_bytes()
        assert ours == safetensors.torch.save(tensors, {"format": "pt"})


def test_the_package_reads_ours_and_we_the_packages(tmp_path):
    tensors = many()
    again = safetensors.torch.load_file(written(tmp_path / "ours", tensors))
    safetensors.torch.save_file(tensors, tmp_path / "theirs", {"key": "word"})
    assert again.keys() == tensors.keys() == entries_of(tmp_path / "theirs").keys()
    for name, x in tensors.items():
        mine = read(tmp_path / "theirs", name)
        assert mine.dtype == again[name].dtype == x.dtype
        assert mine.shape == again[name].shape == x.shape
        bits = x.reshape(-1).view(torch.uint8)
        assert torch.equal(mine.reshape(-1).view(torch.uint8), bits)
        assert torch.equal(again[name].reshape(-1).view(torch.uint8), bits)


def test_strided_tensors_are_written_row_by_row(tmp_path):
    x = torch.arange(6.0).view(2, 3)
    path = written(tmp_path / "file", {"t": x.t(), "e": x[:, :1].expand(2, 4)})
    assert torch.equal(read(path, "t"), x.t())
    assert torch.equal(read(path, "e"), x[:, :1].expand(2, 4))


def test_boxes_and_only_their_bytes(tmp_path, monkeypatch):
    x = torch.randn(5, 4, 6, generator=RANDOM)
    tensors = {"before": torch.ones(3), "x": x, "y": torch.tensor(2.0)}
    path = written(tmp_path / "file", tensors)
    seen, real = [], files._read

    def watched(file, first, into):
        seen.append(len(into))
        return real(file, first, into)

    monkeypatch.setattr(files, "_read", watched)
    for first, size, calls in (
        ((0, 0, 0), (5, 4, 6), 1),
        ((1, 0, 0), (3, 4, 6), 1),
        ((2, 1, 0), (1, 2, 6), 1),
        ((2, 1, 0), (2, 2, 6), 2),
        ((0, 3, 2), (5, 1, 3), 5),
        ((1, 1, 5), (2, 3, 1), 6),
        ((4, 3, 5), (1, 1, 1), 1),
        ((1, 2, 3), (0, 1, 1), 0),
    ):
        seen.clear()
        box = Box(first, size)
        assert torch.equal(read(path, "x", box), box.view(x))
        del seen[:2]  # the header, and its length
        assert sum(seen) == 4 * box.numel
        assert len(seen) == calls, (first, size)
    assert read(path, "y") == 2


def test_every_truncation_is_refused(tmp_path):
    path = written(tmp_path / "file", {"w": torch.ones(3, dtype=torch.float64)})
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(ValueError, match="file is no whole safetensors file"):
            entries_of(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(
        ValueError, match=f"it has {len(whole) + 1} bytes, its header speaks of {len(whole)}"
    ):
        entries_of(path)


def headed(header, data=b"\0" * 16):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


ONE = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04" + b"\0" * 60,
        b"\x80\x04\x95" + b"\0" * 60,
        headed(b"not json"),
        headed([1]),
        headed({"w": 1}),
        headed({"w": ONE | {"dtype": "F33"}}),
        headed({"w": ONE | {"shape": [5]}}),
        headed({"w": ONE | {"shape": None}}),
        headed({"w": ONE | {"data_offsets": [4, 20]}}),
        headed({"v": ONE, "w": ONE}),
        headed({"w": {"dtype": "F32"}}),
        headed({"w": ONE | {"shape": [-4]}}),
        headed(b"[" * 9000),
        struct.pack("<Q", 1 << 62) + b"\0" * 16,
    ],
)
def test_what_is_no_such_file(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match="is no whole safetensors file"):
        entries_of(tmp_path / "file")


# ------------------------------------------------------------
# Manifests that were changed, cut off, or are somebody else's.


BODY = {
    "step": 3,
    "grid": {"dp": 1},
    "files": {"rank-00000.safetensors": [3, sha256(b"abc").hexdigest()]},
    "tensors": {
        "w": {"dtype": "F32", "shape": [2], "pieces": [["rank-00000.safetensors", [0], [2]]]}
    },
}


def text_of(folder):
    """The bytes of a manifest that is written into this folder."""
    files.write_manifest(folder, BODY)
    return (folder / files.MANIFEST).read_bytes()


def test_there_and_back(tmp_path):
    text_of(tmp_path)
    assert files.read_manifest(tmp_path).items() >= BODY.items()


def test_a_changed_byte_is_refused(tmp_path):
    text = text_of(tmp_path)
    for i in range(0, len(text), 2):
        (tmp_path / files.MANIFEST).write_bytes(text[:i] + bytes([text[i] ^ 1]) + text[i + 1 :])
        with pytest.raises(Refused, match="manifest"):
            files.read_manifest(tmp_path)


def test_a_truncation_is_refused(tmp_path):
    text = text_of(tmp_path)
    for end in range(0, len(text), 2):
        (tmp_path / files.MANIFEST).write_bytes(text[:end])
        with pytest.raises(Refused, match="cannot be read"):
            files.read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[]", "is not a minidist checkpoint's"),
        (b'{"weight_map": {}}', "is not a minidist checkpoint's"),
        (b"\x80\x04\x95pickle", "cannot be read"),
        (b"[" * 9000, "cannot be read"),
        (b'{"format": "minidist checkpoint", "version": 1}', "has version 1, this is version 2"),
        (b'{"format": "minidist checkpoint", "version": 2}', "is damaged: its checksum does not"),
    ],
)
def test_others_are_refused(tmp_path, content, words):
    (tmp_path / files.MANIFEST).write_bytes(content)
    with pytest.raises(Refused, match=words):
        files.read_manifest(tmp_path)


def test_a_folder_without_one(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(
            Refused, match=r"has no manifest.json: it was not saved to the end, or is no checkpoint"
        ):
            files.read_manifest(folder)


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
    path = tmp_path / "rank-00000.safetensors"
    path.write_bytes(b"abc")
    files.verify(path, 3, sha256(b"abc").hexdigest())
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Refused, match=f"{path.name} {words}"):
        files.verify(path, 3, sha256(b"abc").hexdigest())


def test_the_newest_is_the_last_save(tmp_path):
    assert files.begun(tmp_path / "none") == []
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
        (tmp_path / name / files.MANIFEST).write_text("")
    assert [path.name for path in files.begun(tmp_path)] == [
        "000009-step-50",
        "000010-step-20",
        "1000000-step-1",
    ]
    assert [path.name for path in files.finished(tmp_path)] == [
        "000009-step-50",
        "1000000-step-1",
    ]
