"""Who owns what."""

from itertools import chain

import pytest
import torch
from torch import nn

from minidist.split import Cut, bounds, checked_sizes, cuts, even, join, uneven


@pytest.mark.parametrize(
    ("total", "n", "sizes"),
    [
        (10, 4, [3, 3, 2, 2]),
        (3, 5, [1, 1, 1, 0, 0]),
        (0, 2, [0, 0]),
        (7, 1, [7]),
        (8, 4, [2, 2, 2, 2]),
    ],
)
def test_uneven(total, n, sizes):
    assert uneven(total, n) == sizes


def test_uneven_differs_by_one_at_most_and_first_ranks_get_more():
    for total in range(40):
        for n in range(1, 12):
            sizes = uneven(total, n)
            assert len(sizes) == n and sum(sizes) == total
            assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)


def test_even():
    assert even(12, 4) == [3, 3, 3, 3]
    assert even(0, 3) == [0, 0, 0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: even(10, 4), ("10 rows", "4 ranks")),
        (lambda: even(10, 4, "samples"), ("10 samples", "4 ranks")),
        (lambda: even(10, 0), ("10", "0")),
        (lambda: uneven(5, 0), ("5", "0")),
        (lambda: uneven(-1, 2), ("-1", "2")),
        (lambda: checked_sizes([1, 2], 4, 2), ("3", "4")),
        (lambda: checked_sizes([1, 2], 3, 3), ("2 sizes", "3 ranks")),
        (lambda: checked_sizes([1, 2, 3], 6, 2), ("3 sizes", "2 ranks")),
        (lambda: checked_sizes([5, -1], 4, 2), ("[5, -1]", "at least 0", "-1")),
        (lambda: checked_sizes([], 0, 2), ("0 sizes", "2 ranks")),
        (lambda: checked_sizes(None, 5, 2), ("5", "2")),
    ],
)
def test_errors_name_both_numbers(call, words):
    with pytest.raises(ValueError) as caught:
        call()
    assert all(word in str(caught.value) for word in words)


def test_checked_sizes():
    assert checked_sizes((1, 0, 2), 3, 3) == [1, 0, 2]
    assert checked_sizes([4, 9], None, 2) == [4, 9]
    assert checked_sizes(None, 6, 3) == [2, 2, 2]


def test_bounds():
    assert bounds([3, 2, 0, 1]) == [(0, 3), (3, 5), (5, 5), (5, 6)]
    for total in range(20):
        for n in range(1, 7):
            parts = [list(range(total))[first:end] for first, end in bounds(uneven(total, n))]
            assert list(chain(*parts)) == list(range(total))


# ------------------------------------------------------------
# A rank's part of a parameter, by hand; which parameters of a module are cut.


def test_a_part_is_a_view_of_the_whole():
    whole = torch.arange(12).view(3, 4)
    cut = Cut(1, [2, 1, 1])
    parts = [cut.part(whole, rank) for rank in range(3)]
    assert torch.equal(torch.cat(parts, 1), whole)
    assert [part.shape for part in parts] == [(3, 2), (3, 1), (3, 1)]
    assert parts[2].data_ptr() == whole[:, 3:].data_ptr()


def test_parts_of_rows_that_n_does_not_divide():
    whole = torch.arange(14).view(7, 2)
    for n in (1, 2, 3, 4, 9):
        cut = Cut(0, uneven(7, n))
        assert torch.equal(torch.cat([cut.part(whole, rank) for rank in range(n)]), whole)


def test_the_shape_of_a_part():
    assert Cut(1, [2, 2]).shape((3, 4, 5), 2) == (3, 2, 5)
    assert Cut(0, [2, 2]).shape((4,), 2) == (2,)


def test_the_cuts_of_a_module_are_those_of_its_children():
    module = nn.Sequential(nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 2)))
    assert cuts(module) == {}
    module[1][0].cuts = {"weight": Cut(1, [2, 2])}
    assert cuts(module) == {"1.0.weight": Cut(1, [2, 2])}
    assert cuts(module[1][0]) == {"weight": Cut(1, [2, 2])}


def test_names_are_joined():
    assert join("", "mlp", "", "weight") == "mlp.weight"
    assert join() == ""
