"""Plain values survive the way to another process; anything else is named, never opened."""

from collections import Counter, defaultdict, deque
from enum import IntEnum

import numpy
import pytest
import torch

from minicheck.plain import DTYPES, Other, decode, encode


@pytest.mark.parametrize(
    "value",
    [None, True, 3, -2.5, "α", [], [1, [2, "x"]], (1, (2,)), {"a": 1, 2: [None]}, float("inf")],
)
def test_round_trip(value):
    back = decode(encode(value))
    assert back == value and type(back) is type(value)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3)])
def test_tensors(dtype, shape):
    x = torch.randint(0, 2, shape).to(dtype)
    back = decode(encode({"x": [x, x]}))["x"]
    assert all(b.dtype == dtype and b.shape == x.shape and b.equal(x) for b in back)


def test_a_strided_tensor_and_a_parameter():
    x = torch.arange(12.0).reshape(3, 4)
    assert decode(encode(x.T[::2])).equal(x.T[::2])
    assert decode(encode(torch.nn.Parameter(x))).equal(x)


@pytest.mark.parametrize(
    "value", [object(), lambda: 0, {1, 2}, torch.empty(2, device="meta"), torch.eye(2).to_sparse()]
)
def test_what_is_not_plain_is_only_named(value):
    assert isinstance(decode(encode([value]))[0], Other)


class Pretends(float):
    def __eq__(self, other):
        return True

    __hash__ = float.__hash__


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Pretends(1), 1.0),
        (numpy.float64(2.5), 2.5),
        (numpy.float32(0.5), 0.5),
        (numpy.int64(-3), -3),
        (numpy.bool_(True), True),
        (Counter("aab"), {"a": 2, "b": 1}),
        (defaultdict(list, {1: [2]}), {1: [2]}),
        (deque([1]), Other("deque")),
        (numpy.ones(2), Other("ndarray")),
        (IntEnum("E", "A").A, 1),
        ({numpy.int64(1): "x"}, {1: "x"}),
    ],
)
def test_a_subclass_becomes_the_plain_one(value, plain):
    back = decode(encode(value))
    assert type(back) is type(plain) and back == plain
    assert not isinstance(back, tuple)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x05" + bytes(7) + b"[1, 2",
        encode([1]) + b"x",
        b"\xff" * 8,
        encode(torch.ones(4))[:-1],
        encode({"a": 1}).replace(b"dict", b"dirt"),
    ],
)
def test_nonsense_is_a_value_error(data):
    with pytest.raises(ValueError):
        decode(data)
