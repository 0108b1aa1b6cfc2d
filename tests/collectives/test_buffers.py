"""Runs of chunks in one buffer."""

import pytest
import torch

from minidist.collectives.buffers import adjacent_view, copy_into
from minidist.collectives.verbs import flat_rows


@pytest.mark.parametrize("sizes", [[2, 0, 1], [0, 3, 0], [3, 0, 0], [1, 1, 1]])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_chunks_are_adjacent(sizes, device):
    chunks = flat_rows(torch.arange(6, device=device).view(3, 2), sizes)
    for first in range(3):
        for end in range(first + 1, 4):
            whole = adjacent_view(chunks, first, end)
            assert whole.numel() == sum(chunk.numel() for chunk in chunks[first:end])
            if device == "cpu":
                assert whole.tolist() == torch.cat(chunks[first:end]).tolist()
                memory = {t.untyped_storage().data_ptr() for t in (whole, chunks[0])}
                assert len(memory) == 1


def test_a_view_where_there_is_nothing():
    nothing = flat_rows(torch.empty(4, 0), [1, 2, 1])
    assert [adjacent_view(nothing, 0, end).numel() for end in (1, 2, 3)] == [0, 0, 0]


def test_put():
    x, y = torch.ones(2), torch.zeros(2)
    copy_into(x, y)
    assert y.tolist() == [1, 1]
    before = x._version
    copy_into(x, x)
    assert x._version == before
