"""What a piece is, and what it is not."""

import pytest
import torch

from minidist.checkpoint.boxes import Box
from minidist.checkpoint.piece import piece


def test_a_view():
    p = torch.nn.Parameter(torch.arange(6.0).view(2, 3))
    one = piece("w", p, (4, 3), (2, 0))
    assert one.box == Box((2, 0), (2, 3))
    one.sub(Box((3, 1), (1, 2))).zero_()
    assert p.tolist() == [[0, 1, 2], [3, 0, 0]]
    assert piece("w", p).whole == (2, 3)


@pytest.mark.parametrize(("first", "rows"), [(0, 4), (4, 3), (7, 0), (9, 0)])
def test_padding_is_cut_off(first, rows):
    one = piece("w", torch.zeros(4, 3), (7, 3), (first, 0))
    assert one.values.shape[0] == rows
    assert one.values.shape[1] == 3


@pytest.mark.parametrize(("whole", "first"), [((4,), (2,)), ((4, 3), (2,)), ((4, 3, 1), (0, 0, 0))])
def test_dimensions(whole, first):
    with pytest.raises(ValueError, match=rf"w has {len(whole)} dimensions.* and this piece 2"):
        piece("w", torch.zeros(2, 3), whole, first)


def test_meta():
    with pytest.raises(ValueError, match="w is on the device meta"):
        piece("w", torch.zeros(2, device="meta"))
