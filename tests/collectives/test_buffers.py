"""Tensors laid out flat, and put back."""

import pytest
import torch

from minidist.collectives.buffers import Flat, adjacent_view, copy_into, flat_rows


def test_one_contiguous_tensor_is_not_copied():
    x = torch.arange(6.0).view(2, 3)
    flat = Flat([x])
    assert flat.buffer.data_ptr() == x.data_ptr()
    flat.buffer.add_(1)
    flat.restore()
    assert torch.equal(x, torch.arange(1.0, 7.0).view(2, 3))


@pytest.mark.parametrize(
    "tensors",
    [
        [torch.arange(6.0).view(2, 3).t()],
        [torch.arange(6.0), torch.tensor(5.0), torch.empty(0), torch.arange(8.0)[::2]],
    ],
)
def test_others_are_copied_and_copied_back(tensors):
    tensors = [t.clone(memory_format=torch.preserve_format) for t in tensors]
    before = [t.clone() for t in tensors]
    flat = Flat(tensors)
    assert torch.equal(flat.buffer, torch.cat([t.reshape(-1) for t in before]))
    flat.buffer.add_(1)
    assert all(torch.equal(t, b) for t, b in zip(tensors, before, strict=True))
    flat.restore()
    assert all(torch.equal(t, b + 1) for t, b in zip(tensors, before, strict=True))


def test_rows_of_every_rank():
    chunks = flat_rows(torch.arange(6).view(3, 2), [1, 2])
    assert [c.tolist() for c in chunks] == [[0, 1], [2, 3, 4, 5]]
    strided = torch.arange(6).view(2, 3).t()
    assert [c.tolist() for c in flat_rows(strided, [2, 1])] == [[0, 3, 1, 4], [2, 5]]


def test_a_number_is_one_row():
    assert [c.tolist() for c in flat_rows(torch.tensor(3.0), [1])] == [[3.0]]


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
