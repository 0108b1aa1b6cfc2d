"""Plain values as bytes and back: what passes between a grader and the process of an untrusted answer.

Numbers, strings, lists, tuples, dicts and tensors, nothing that could run code when it is read (pickle could); what
is one of them and more (a Counter, a number of NumPy's) becomes the plain one. Layout: 8 bytes with the length of a
JSON text, the text, the tensors' bytes one after the other.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.bool,
        torch.complex64,
    )
}


@dataclass(frozen=True)
class Other:
    """Stands for a value that is not plain: only the name of its type is known."""

    kind: str

    def __repr__(self) -> str:
        return f"a {self.kind}"


def kind_of(value) -> str:
    """The name of a value's type, as where it came from."""
    return (
        value.kind
        if isinstance(value, Other)
        else "None"
        if value is None
        else type(value).__name__
    )


def shown(value) -> str:
    """What came instead of what was asked for, in short."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def real(x: float) -> float:
    """A number as a float, also a whole one that no float holds."""
    try:
        return float(x)
    except OverflowError:
        return math.inf if x > 0 else -math.inf


def encode(value) -> bytes:
    """`value` as bytes; what is not plain becomes `Other`."""
    blobs: list[bytes] = []
    text = json.dumps(_to_json(value, blobs)).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *blobs])


def _to_json(value, blobs: list[bytes]):
    if isinstance(value, Tensor):
        return _tensor_to_json(value, blobs)
    if isinstance(value, numpy.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, list):
        return [_to_json(v, blobs) for v in value]
    if isinstance(value, tuple):
        return {"tuple": [_to_json(v, blobs) for v in value]}
    if isinstance(value, dict):
        return {"dict": [[_to_json(k, blobs), _to_json(v, blobs)] for k, v in value.items()]}
    return {"other": type(value).__name__}


def _tensor_to_json(x: Tensor, blobs: list[bytes]):
    name = str(x.dtype).removeprefix("torch.")
    if x.layout != torch.strided or x.device.type != "cpu" or name not in DTYPES:
        return {"other": f"{x.device.type} tensor of {name}"}
    flat = x.detach().as_subclass(Tensor).resolve_conj().resolve_neg().contiguous().reshape(-1)
    blobs.append(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return {"tensor": [name, list(x.shape)]}


def decode(data: bytes):
    """The value of `encode`; ValueError for bytes that are no such value."""
    size = int.from_bytes(data[:8], "little")
    try:
        value, rest = _from_json(json.loads(data[8 : 8 + size]), memoryview(data)[8 + size :])
    except (KeyError, TypeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"not a plain value: {error}") from None
    if rest.nbytes:
        raise ValueError(f"{rest.nbytes} bytes are left over")
    return value


def _from_json(value, rest: memoryview):
    if isinstance(value, list):
        return _items(value, rest)
    if not isinstance(value, dict):
        return value, rest
    [(kind, held)] = value.items()
    if kind == "other":
        return Other(str(held)), rest
    if kind == "tensor":
        return _tensor(held[0], [int(s) for s in held[1]], rest)
    items, rest = _items(held, rest)
    return {"tuple": tuple, "dict": dict}[kind](items), rest


def _items(values: list, rest: memoryview) -> tuple[list, memoryview]:
    items = []
    for v in values:
        item, rest = _from_json(v, rest)
        items.append(item)
    return items, rest


def _tensor(name: str, shape: list[int], rest: memoryview) -> tuple[Tensor, memoryview]:
    dtype = DTYPES[name]
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size > rest.nbytes:
        raise ValueError(f"a tensor of {size} bytes, and {rest.nbytes} bytes of data")
    if not size:
        return torch.empty(shape, dtype=dtype), rest
    return torch.frombuffer(bytearray(rest[:size]), dtype=dtype).reshape(shape), rest[size:]
