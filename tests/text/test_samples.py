"""Pieces of a text: each once an epoch, the same whatever the batch, found again from one number."""

import pytest
import torch

from minidist.text import Bytes, Samples, packed, split

TEXT = torch.arange(103, dtype=torch.int32)  # a token says where it stands


def test_packed():
    tokens = packed(["ab", "", "c"], Bytes())
    assert tokens.tolist() == [97, 98, 256, 256, 99, 256] and tokens.dtype == torch.int32


def test_an_epoch_has_each_piece_once():
    samples = Samples(TEXT, 10)
    assert samples.epoch == 10
    starts = []
    for epoch in range(20):
        x, y = samples(10 * epoch, 10)
        assert x.dtype == torch.int64 and x.shape == (10, 10) and torch.equal(y, x + 1)
        assert len(set(x.flatten().tolist())) == 100 and y.max() < 103
        starts.append(x[:, 0].tolist())
    assert len({tuple(s) for s in starts}) == 20 and {min(s) for s in starts} == {0, 1, 2}


def test_a_sample_is_the_same_in_every_batch_and_across_epochs():
    whole = Samples(TEXT, 7, seed=3)(0, 40)[0]
    again = Samples(TEXT, 7, seed=3)
    assert torch.equal(torch.cat([again(seen, 8)[0] for seen in range(0, 40, 8)]), whole)
    assert torch.equal(again(33, 5)[0], whole[33:38]) and torch.equal(again(2, 1)[0], whole[2:3])
    assert not torch.equal(Samples(TEXT, 7, seed=4)(0, 40)[0], whole)
    assert [part.shape for part in again(3, 0)] == [(0, 7), (0, 7)]


def test_split():
    train, test = split(TEXT, 0.1)
    assert (
        len(train) == 93
        and torch.equal(torch.cat([train, test]), TEXT)
        and len(split(TEXT, 0)[1]) == 0
    )
    with pytest.raises(ValueError, match="from 0 to below 1, not 1"):
        split(TEXT, 1)


@pytest.mark.parametrize(("tokens", "length"), [(10, 10), (0, 1), (5, 0)])
def test_a_text_that_is_too_short(tokens, length):
    with pytest.raises(ValueError, match=f"{tokens} tokens have no piece of {length}"):
        Samples(TEXT[:tokens], length)
