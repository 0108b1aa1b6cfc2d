"""The parts of a GPT: the same computation, the same parameters, also when a stage is made alone."""

import pytest
import torch

from minidist.models import gpt, next_token_loss, sequence, stage_of
from minidist.models.sequence import names

SHAPE = dict(layers=3, hidden=16, heads=2, vocab=29, context=8, dtype=torch.float64)


def tokens(seed=0):
    return torch.randint(0, 29, (2, 6), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("tied", [True, False])
def test_the_parts_compute_the_same(tied):
    model = gpt(**SHAPE, tied=tied)
    parts = sequence(model)
    assert len(parts) == 5 and torch.equal(parts(tokens()), model(tokens()))
    assert {id(p) for p in parts.parameters()} == {id(p) for p in model.parameters()}
    next_token_loss(parts(tokens()), tokens(1)).backward()
    other = gpt(**SHAPE, tied=tied)
    next_token_loss(other(tokens()), tokens(1)).backward()
    for name, p in other.named_parameters():
        assert torch.equal(model.get_parameter(name).grad, p.grad), name


@pytest.mark.parametrize("tied", [True, False])
def test_names(tied):
    model = gpt(**SHAPE, tied=tied)
    known, parts = names(model), sequence(model)
    for name, whole in known.items():
        assert parts.get_parameter(name) is model.get_parameter(whole)
    assert set(known.values()) == {name for name, _ in model.named_parameters()}
    tokens_in = [name for name, whole in known.items() if whole == "tokens.weight"]
    assert tokens_in == (["0.tokens.weight", "4.tokens.weight"] if tied else ["0.tokens.weight"])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("first", "end"), [(0, 5), (0, 1), (1, 3), (4, 5), (2, 2)])
def test_a_stage_alone_has_the_numbers_of_the_whole(first, end, tied):
    whole = sequence(gpt(**SHAPE, tied=tied, seed=3))[first:end]
    meta = gpt(**SHAPE, tied=tied, device="meta")
    alone = stage_of(meta, first, end, seed=3)
    assert all(p.is_meta for p in meta.parameters())
    expected, found = (dict(m.named_parameters(remove_duplicate=False)) for m in (whole, alone))
    assert list(expected) == list(found)
    assert all(torch.equal(expected[name], p) for name, p in found.items())
    assert len(set(found.values())) == len(set(expected.values())), "a tied parameter is one"


@pytest.mark.parametrize(("first", "end"), [(0, 6), (3, 2), (-1, 2)])
def test_parts_that_there_are_not(first, end):
    with pytest.raises(ValueError, match=f"{first} to {end} of a model of 5"):
        stage_of(gpt(**SHAPE, device="meta"), first, end)


def test_too_many_tokens():
    with pytest.raises(ValueError, match=r"9 tokens .* context of 8"):
        sequence(gpt(**SHAPE))(torch.zeros(1, 9, dtype=torch.int64))
