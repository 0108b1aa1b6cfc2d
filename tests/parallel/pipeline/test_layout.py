"""Layouts travel as whole numbers, and come out as they went in."""

import pytest
import torch

from minidist.parallel.pipeline.layout import DTYPES, Layout, layout, layouts, numbers, words


def test_there_and_back():
    some = [Layout((2, 0, 5), torch.bfloat16, True), Layout((), torch.int64, False)]
    assert layouts(numbers(some)) == some and layouts(numbers([])) == []
    every = [Layout((i,) * i, dtype, False) for i, dtype in enumerate(DTYPES)]
    assert layouts(numbers(every)) == every


def test_of_a_tensor():
    x = torch.zeros(2, 3, requires_grad=True)
    assert layout(x) == Layout((2, 3), torch.float32, True) and layout(x, False).wanted is False
    room = layout(x).empty(torch.device("meta"))
    assert room.is_leaf and room.requires_grad and room.is_meta and room.shape == (2, 3)
    assert (
        words([layout(x), layout(torch.zeros(1).long())])
        == "(2, 3) float32 with gradient, (1,) int64"
    )
    assert words([]) == "no tensor"


def test_a_dtype_that_does_not_pass():
    with pytest.raises(ValueError, match="complex32"):
        numbers([Layout((1,), torch.complex32, False)])
