"""What is on the disk, and in which order it came there."""

import errno
import hashlib
import os

import pytest

from minidist.checkpoint import disk

CHUNKS = [b"head", memoryview(bytearray(range(200))), b"", b"tail"]
WHOLE = b"".join(CHUNKS)


def test_sums(tmp_path):
    found = disk.write(tmp_path / "file", CHUNKS)
    assert (tmp_path / "file").read_bytes() == WHOLE
    assert (
        found
        == disk.Sum(len(WHOLE), hashlib.sha256(WHOLE).hexdigest())
        == disk.sum_of(tmp_path / "file")
    )


def test_the_order(tmp_path, monkeypatch):
    seen, folders = [], set()

    def watch(name, say):
        real = getattr(os, name)

        def wrapped(*args, **kwargs):
            result = real(*args, **kwargs)
            seen.append(say(args, result))
            return result

        monkeypatch.setattr(os, name, wrapped)

    def opened(args, file):
        if os.path.isdir(args[0]):
            folders.add(file)
        return f"open {os.path.basename(args[0])}"

    watch("open", opened)
    watch("write", lambda args, n: "write")
    watch("fsync", lambda args, _: "fsync folder" if args[0] in folders else "fsync")
    watch("replace", lambda args, _: f"rename to {os.path.basename(args[1])}")
    disk.write(tmp_path / "file", [b"a", b"b"])
    assert seen == [
        "open file.partial",
        "write",
        "write",
        "fsync",
        "rename to file",
        f"open {tmp_path.name}",
        "fsync folder",
    ]


def test_short_writes(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, view: real(file, view[:3]))
    monkeypatch.setattr(disk, "STEP", 50)
    disk.write(tmp_path / "file", CHUNKS)
    assert (tmp_path / "file").read_bytes() == WHOLE


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, call):
    disk.write(tmp_path / "file", [b"old"])

    def full(*args):
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as m:
        m.setattr(os, call, full)
        with pytest.raises(OSError, match="no space left"):
            disk.write(tmp_path / "file", CHUNKS)
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_reading_beyond_the_end(tmp_path):
    (tmp_path / "file").write_bytes(b"abcdef")
    with open(tmp_path / "file", "rb") as file:
        found = bytearray(3)
        disk.read(file.fileno(), memoryview(found), 2)
        assert found == b"cde"
        with pytest.raises(ValueError, match="ends 1 bytes too early"):
            disk.read(file.fileno(), memoryview(found), 4)
