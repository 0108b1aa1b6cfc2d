"""Our files against the safetensors package: byte for byte, both ways; and files that are none."""

import json
import os
import struct

import pytest
import safetensors.torch
import torch

from minidist.checkpoint.boxes import Box
from minidist.checkpoint.format import DTYPES, File, chunks

RANDOM = torch.Generator().manual_seed(0)


def many():
    """Tensors of all dtypes, and of shapes that hurt."""
    found = {}
    for dtype in DTYPES:
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


def written(path, tensors, metadata=None):
    path.write_bytes(b"".join(chunks(tensors, metadata or {})))
    return path


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"a\n": '{"b"}'}])
def test_the_same_bytes_as_the_package(tmp_path, metadata):
    tensors = many()
    ours = written(tmp_path / "ours", tensors, metadata).read_bytes()
    assert ours == safetensors.torch.save(tensors, metadata)
    assert safetensors.torch.save({}) == written(tmp_path / "empty", {}).read_bytes()


def test_the_package_reads_ours_and_we_the_packages(tmp_path):
    tensors = many()
    again = safetensors.torch.load_file(written(tmp_path / "ours", tensors))
    safetensors.torch.save_file(tensors, tmp_path / "theirs", {"key": "word"})
    file = File(tmp_path / "theirs")
    assert file.metadata == {"key": "word"}
    assert again.keys() == tensors.keys() == file.entries.keys()
    for name, x in tensors.items():
        mine = file.read(name, Box.of(x.shape))
        assert mine.dtype == again[name].dtype == x.dtype
        assert mine.shape == again[name].shape == x.shape
        bits = x.reshape(-1).view(torch.uint8)
        assert torch.equal(mine.reshape(-1).view(torch.uint8), bits)
        assert torch.equal(again[name].reshape(-1).view(torch.uint8), bits)
    file.close()


def test_strided_tensors_are_written_row_by_row(tmp_path):
    x = torch.arange(6.0).view(2, 3)
    file = File(written(tmp_path / "file", {"t": x.t(), "e": x[:, :1].expand(2, 4)}))
    assert torch.equal(file.read("t", Box.of((3, 2))), x.t())
    assert torch.equal(file.read("e", Box.of((2, 4))), x[:, :1].expand(2, 4))
    file.close()


def test_boxes_and_only_their_bytes(tmp_path, monkeypatch):
    x = torch.randn(5, 4, 6, generator=RANDOM)
    file = File(
        written(tmp_path / "file", {"before": torch.ones(3), "x": x, "y": torch.tensor(2.0)})
    )
    read, real = [], os.preadv

    def watched(descriptor, buffers, first):
        read.append(sum(map(len, buffers)))
        return real(descriptor, buffers, first)

    monkeypatch.setattr(os, "preadv", watched)
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
        read.clear()
        box = Box(first, size)
        assert torch.equal(file.read("x", box), box.view(x))
        assert sum(read) == 4 * box.numel
        assert len(read) == calls, (first, size)
    assert file.read("y", Box((), ())) == 2
    file.close()


def test_every_truncation_is_refused(tmp_path):
    path = written(tmp_path / "file", {"w": torch.ones(3, dtype=torch.float64)})
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(ValueError, match="file is no whole safetensors file"):
            File(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(
        ValueError, match=f"it has {len(whole) + 1} bytes, its header speaks of {len(whole)}"
    ):
        File(path)


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
        File(tmp_path / "file")


def test_a_dtype_that_it_does_not_have():
    with pytest.raises(
        ValueError, match="w is complex128, which the safetensors format does not have"
    ):
        list(chunks({"w": torch.empty(2, dtype=torch.complex128)}, {}))
