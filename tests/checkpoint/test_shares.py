"""Who writes what."""

import pytest
import torch

from minidist.checkpoint.piece import piece
from minidist.checkpoint.shares import Row, distinct, owners, tensors
from tests.largest import largest


def table(*pieces):
    return [Row.of(one) for one in pieces]


def whole(name, rows, dtype=torch.float32):
    return piece(name, torch.zeros(rows, 2, dtype=dtype))


def part(name, first, size, of=6):
    return piece(name, torch.zeros(size, 2), (of, 2), (first, 0))


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_replicas_share_the_work(n):
    sizes = [8, 1, 5, 3, 3, 2, 7, 4]
    replica = table(*(whole(f"w{i}", size) for i, size in enumerate(sizes)))
    found = owners([replica] * n)
    assert sorted(found) == sorted(replica)
    loads = [sum(one.nbytes for one, rank in found.items() if rank == r) for r in range(n)]
    assert largest(loads) <= 4 / 3 * max(8 * max(sizes), sum(loads) / n)  # Graham's bound


def test_who_alone_has_it_writes_it():
    found = owners(
        [
            table(whole("a", 1), part("m", 0, 3)),
            table(whole("a", 1), part("m", 3, 3)),
            table(whole("b", 9)),
        ]
    )
    by_key = {one.key: rank for one, rank in found.items()}
    assert by_key == {"a": 0, "m[0:3, 0:2]": 0, "m[3:6, 0:2]": 1, "b": 2}
    m = tensors(found)["m"]
    assert m == {
        "dtype": "F32",
        "shape": [6, 2],
        "pieces": [
            ["rank-00000.safetensors", [0, 0], [3, 2]],
            ["rank-00001.safetensors", [3, 0], [3, 2]],
        ],
    }


def test_empty_ones():
    found = owners(
        [table(part("m", 0, 6), whole("none", 0)), table(part("m", 6, 0), whole("none", 0))]
    )
    assert [one.key for one in found] == ["m", "none"]
    assert found[Row.of(part("m", 0, 6))] == 0


def test_the_same_piece_twice_on_a_rank():
    assert len(owners([table(whole("a", 2), whole("a", 2))])) == 1


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (whole("w", 3), whole("w", 4), r"w is \(3, 2\) F32 on rank 0, and \(4, 2\) F32 on rank 1"),
        (
            whole("w", 3),
            whole("w", 3, torch.float16),
            r"w is \(3, 2\) F32 on rank 0, and \(3, 2\) F16 on rank 1",
        ),
        (part("w", 0, 3), part("w", 4, 2), r"w is \(6, 2\), and no rank has \[3:4, 0:2\] of it"),
    ],
)
def test_what_does_not_fit_together(one, other, words):
    with pytest.raises(ValueError, match=words):
        owners([table(one), table(other)])


def test_two_of_one_name():
    """One in a part and one whose name says the same; twice the same memory is one."""
    halves = table(part("w", 0, 2, 4), part("w", 2, 2, 4))
    with pytest.raises(ValueError, match=r"both have a piece called 'w\[0:2, 0:2\]'"):
        owners([[*halves, *table(piece(halves[0].key, torch.zeros(2)))]])
    x = torch.ones(2)
    assert len(distinct([piece("w", x), piece("w", x)])) == 1
    with pytest.raises(ValueError, match="two tensors are named 'w'"):
        distinct([piece("w", x), piece("w", x.clone())])


def test_a_dtype_that_cannot_be_saved():
    with pytest.raises(ValueError, match="w is complex128"):
        Row.of(piece("w", torch.zeros(2, dtype=torch.complex128)))
