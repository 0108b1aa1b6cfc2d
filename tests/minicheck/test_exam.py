"""What a wrong tensor looks like; and plain values survive the way to another process."""

from collections import Counter, defaultdict, deque
from enum import IntEnum

import numpy
import pytest
import torch

from minicheck.exam import (
    DTYPES,
    UNKNOWN,
    Other,
    Wrong,
    decode,
    encode,
    equal_to,
    same,
    unchanged,
    who,
    whole,
)

RNG = torch.Generator().manual_seed(0)
A, B, C = (whole((5,), torch.float32, RNG) for _ in range(3))


@pytest.mark.parametrize(
    ("got", "rank", "says"),
    [
        (A + B + C, 0, "the sum over all ranks"),
        (A + B, 0, "lacks rank 2"),
        (A + 2 * B + C, 0, "counts rank 1 twice"),
        (2 * A + B, 1, "counts rank 0 twice and lacks rank 2"),
        (A, 0, "own, as before"),
        (A, 1, "It is rank 0's"),
        ((A + B + C) / 3, 0, "average"),
        (3 * A, 0, "3 times rank 0's"),
        (0 * A, 0, "zero"),
        (2 * C, 0, "lacks ranks 0 and 1"),
    ],
)
def test_which_ranks_went_into_it(got, rank, says):
    assert says in who(got, [A, B, C], rank)


@pytest.mark.parametrize("got", [A - B, A + 1, torch.full((5,), float("nan")), A[:0]])
def test_what_fits_nothing(got):
    assert who(got, [A, B, C] if len(got) else [A[:0]] * 3, 0) is None


def test_same_says_where():
    wrong = A.clone()
    wrong[3] = 0.5
    with pytest.raises(
        Wrong, match=r"rank 2: x\[3\] is 0.5, and should be \d+ \(1 of 5 numbers are wrong\)"
    ):
        same(2, wrong, A, "x")
    with pytest.raises(Wrong, match=r"number 1 of the result"):
        same(0, torch.tensor([[1, 9]]), torch.tensor([[1, 2]]), "the result")
    with pytest.raises(Wrong, match="is nan, and"):
        same(0, torch.tensor(float("nan")), torch.tensor(1.0), "x")
    same(0, A.clone(), A, "x")


def test_same_asks_the_guess_and_admits_that_it_does_not_know():
    with pytest.raises(Wrong, match="It is B"):
        same(0, B, A, "x", lambda got: equal_to(got, {"It is B.": B, "It is C.": C}))
    with pytest.raises(Wrong, match=UNKNOWN):
        same(0, A + 1, A, "x", lambda got: who(got, [A, B, C], 0))


@pytest.mark.parametrize(
    ("got", "says"),
    [
        (None, "Is there a `return`"),
        ([1], "is of type list"),
        (A[:2], "shape"),
        (A.double(), "dtype"),
        (3, "is of type int"),
    ],
)
def test_same_looks_at_the_type_first(got, says):
    with pytest.raises(Wrong, match=says):
        same(0, got, A, "x")


def test_unchanged():
    unchanged(0, A.clone(), A, "x")
    for after in (A + 1, A[:2], None):
        with pytest.raises(Wrong, match="belongs to the caller"):
            unchanged(0, after, A, "x")


def test_whole_numbers_are_exact_in_any_order():
    xs = [whole((1000,), torch.float32, RNG) for _ in range(16)]
    assert sum(xs).equal(sum(xs[::-1])) and sum(xs).double().equal(sum(x.double() for x in xs))


# ------------------------------------------------------------
# Plain values survive the way to another process; anything else is named, never opened.


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
