"""The safetensors format, written and read: a header that says where each tensor lies, then their bytes.

    8 bytes    length of the header, little-endian
    header     {"__metadata__": {…}, "w": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}, …}, padded to 8
    data       the tensors without gaps, wide dtypes first, each row by row

The files are byte for byte what the safetensors package writes, and it reads them. What it does not offer, and a
checkpoint needs: a checksum taken while writing, and reading any box of a tensor: from a row, only the bytes that are
in it. Nothing in such a file can be run. Source: the format's description in the README of huggingface/safetensors.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import disk
from .boxes import Box

DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.complex64: "C64",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.uint64: "U64",
}
"""In the format's own order, from narrow to wide; files have the last first."""
RANK = {dtype: i for i, dtype in enumerate(DTYPES)}
CODES = {code: dtype for dtype, code in DTYPES.items()}
METADATA = "__metadata__"


class Entry(NamedTuple):
    """A tensor in a file: `first` is the place of its first byte in the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    first: int


def code(name: str, dtype: torch.dtype) -> str:
    """The format's word for a dtype. ValueError where it has none."""
    if dtype not in DTYPES:
        raise ValueError(
            f"{name} is {str(dtype).removeprefix('torch.')}, which the safetensors format does not have"
        )
    return DTYPES[dtype]


def raw(x: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU."""
    return memoryview(x.reshape(-1).view(torch.uint8).numpy())


def chunks(
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    fetch: Callable[[str], Tensor] | None = None,
) -> Iterator[bytes | memoryview]:
    """A file of these tensors, in parts that one can write one after the other; at most one tensor at a time is copied.

    fetch(name): the values, where `tensors` only look like them, on the device meta.
    """
    fetch = fetch or tensors.__getitem__
    order = sorted(tensors, key=lambda name: (-RANK.get(tensors[name].dtype, 0), name))
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    end = 0
    for name in order:
        x, first = tensors[name], end
        end += x.numel() * x.itemsize
        header[name] = {
            "dtype": code(name, x.dtype),
            "shape": list(x.shape),
            "data_offsets": [first, end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        yield raw(fetch(name).detach().to("cpu").contiguous())


class File:
    """A file of tensors, open to read.  entries: {name: Entry}.  metadata: {word: word}.

    Raises ValueError, which says what is wrong with the file, for one that is truncated or no safetensors file.
    """

    def __init__(self, path: Path):
        self.path, self._file = path, os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.entries, self.metadata = self._header(os.fstat(self._file).st_size)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self.close()
            raise ValueError(f"{path} is no whole safetensors file: {error}") from error

    def close(self) -> None:
        os.close(self._file)

    def _header(self, size: int) -> tuple[dict[str, Entry], dict[str, str]]:
        length = int.from_bytes(self._bytes(0, 8), "little")
        if length > size - 8:
            raise ValueError(f"a header of {length} bytes does not fit into {size}")
        header = json.loads(self._bytes(8, length))
        metadata = header.pop(METADATA, {})
        entries = {}
        end = 0
        for name, one in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            entry = Entry(CODES[one["dtype"]], tuple(one["shape"]), 8 + length + end)
            stop = end + math.prod(entry.shape) * entry.dtype.itemsize
            if one["data_offsets"] != [end, stop]:
                raise ValueError(f"{name} lies at {one['data_offsets']}, not at [{end}, {stop}]")
            entries[name], end = entry, stop
        if 8 + length + end != size:
            raise ValueError(f"it has {size} bytes, its header speaks of {8 + length + end}")
        return entries, metadata

    def _bytes(self, first: int, length: int) -> bytearray:
        found = bytearray(length)
        disk.read(self._file, memoryview(found), first)
        return found

    def read(self, name: str, box: Box) -> Tensor:
        """A box of a tensor. Only its own bytes are read, in runs as long as they lie together."""
        dtype, shape, first = self.entries[name]
        found = torch.empty(box.size, dtype=dtype)
        # Dimensions behind the last one that is cut lie together, with a range of that one: a run.
        cut = max(
            (d for d, (have, want) in enumerate(zip(shape, box.size, strict=True)) if have != want),
            default=0,
        )
        strides = [math.prod(shape[d + 1 :]) * dtype.itemsize for d in range(len(shape))]
        view, length = raw(found), math.prod(box.size[cut:]) * dtype.itemsize
        begin = first + (box.first[cut] * strides[cut] if shape else 0)
        rows = product(
            *(range(a, a + n) for a, n in zip(box.first[:cut], box.size[:cut], strict=True))
        )
        for i, row in enumerate(rows):
            at = begin + sum(k * stride for k, stride in zip(row, strides, strict=False))
            disk.read(self._file, view[i * length : (i + 1) * length], at)
        return found
