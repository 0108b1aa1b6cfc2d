"""What a wrong tensor looks like."""

import pytest
import torch

from minicheck.compare import UNKNOWN, equal_to, same, unchanged, who, whole
from minicheck.wrong import Wrong

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
