"""Micro-batches cover the batch, and their shares add up to it."""

import pytest
import torch

from minidist.parallel.pipeline.batches import micro_batches, several, shares


@pytest.mark.parametrize(
    ("samples", "M", "sizes"), [(8, 4, [2] * 4), (7, 3, [3, 2, 2]), (3, 3, [1] * 3), (5, 1, [5])]
)
def test_cut(samples, M, sizes):
    x, row = torch.arange(samples * 2.0).view(samples, 2), torch.arange(samples)
    parts = micro_batches((x, row), M, "inputs")
    assert [len(part[0]) for part in parts] == sizes == [len(part[1]) for part in parts]
    assert torch.equal(torch.cat([a for a, _ in parts]), x) and torch.equal(
        torch.cat([b for _, b in parts]), row
    )
    assert shares(parts) == [size / samples for size in sizes]


def test_shares_give_the_mean_of_the_batch():
    x = torch.randn(7, dtype=torch.float64)
    parts = micro_batches(x, 3, "inputs")
    mean = sum(part[0].mean() * share for part, share in zip(parts, shares(parts), strict=True))
    assert abs(mean - x.mean()) < 1e-15


def test_a_list_is_taken_as_it_is():
    parts = micro_batches([torch.zeros(2), (torch.zeros(5), torch.ones(5))], 2, "inputs")
    assert [len(part) for part in parts] == [1, 2] and shares(parts) == [2 / 7, 5 / 7]


def test_no_graph_comes_with_the_batch():
    x = torch.zeros(4, requires_grad=True) * 2
    assert not any(part[0].requires_grad for part in micro_batches(x, 2, "inputs"))


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (torch.zeros(3), "3 samples does not make 4"),
        ([torch.zeros(1)] * 3, "list of 3 .* 4"),
        ((torch.zeros(4), torch.zeros(5)), "4 and 5"),
        (torch.tensor(1.0), "0 dimensions"),
    ],
)
def test_what_cannot_be(batch, words):
    with pytest.raises(ValueError, match=words):
        micro_batches(batch, 4, "inputs")


def test_only_tensors_pass():
    assert several(torch.zeros(1))[0].shape == (1,) and len(several([torch.zeros(1)] * 2)) == 2
    with pytest.raises(TypeError, match="not int"):
        several((torch.zeros(1), 3))
