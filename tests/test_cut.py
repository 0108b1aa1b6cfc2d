"""A rank's part of a parameter, by hand; which parameters of a module are cut."""

import torch
from torch import nn

from minidist.cut import Cut, cuts, join
from minidist.split import uneven


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
