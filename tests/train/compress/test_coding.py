"""Sparse vectors, there and back, in the bytes that are said."""

import pytest
import torch

from minidist.train.compress.coding import BLOCK, pack, unpack


@pytest.mark.parametrize("length", [1, 5, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("share", [0, 0.001, 1])
def test_there_and_back(length, dtype, share):
    count = min(length, 1 + int(share * length)) if share else 0
    random = torch.Generator().manual_seed(length)
    places = torch.randperm(length, generator=random)[:count].sort().values
    values = torch.randn(count, generator=random).to(dtype)
    packed = pack(values, places, length)
    assert packed.dtype == torch.uint8
    assert packed.numel() == count * (dtype.itemsize + 2) + 8 * -(-length // BLOCK)
    back = unpack(torch.cat([packed[:1], packed])[1:], count, length, dtype)  # at an odd address
    assert torch.equal(back[0], values) and torch.equal(back[1], places)


def test_only_in_the_last_block():
    places = torch.tensor([2 * BLOCK, 3 * BLOCK - 1])
    assert torch.equal(
        unpack(pack(torch.ones(2), places, 3 * BLOCK), 2, 3 * BLOCK, torch.float32)[1], places
    )
