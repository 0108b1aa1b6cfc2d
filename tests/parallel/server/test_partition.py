"""Every element has one server; the servers are full alike; the way there and back."""

import itertools

import pytest
import torch

from minidist.models import mlp
from minidist.parallel.server import Partition
from tests.parallel.cases import made

MODELS = {
    "one large": lambda: [torch.zeros(1000, 100), torch.zeros(3), torch.zeros(()), torch.zeros(0)],
    "strided": lambda: [torch.arange(12.0).view(3, 4).t(), torch.arange(5.0)],
    "mixed": lambda: list(made("mixed", 0).parameters()),
    "digits": lambda: list(mlp([64, 128, 10]).parameters()),
    "few": lambda: [torch.zeros(2)],
    "none": lambda: [],
}


@pytest.mark.parametrize(
    ("name", "servers", "whole"), [*itertools.product(MODELS, (1, 2, 3, 4, 7), (False, True))]
)
def test_every_element_once(name, servers, whole):
    params = MODELS[name]()
    partition = Partition(params, servers, whole)
    seen = [torch.zeros(p.numel()) for p in params]
    for piece in itertools.chain(*partition.pieces):
        seen[piece.param][piece.first : piece.end] += 1
        assert not whole or (piece.first, piece.end) == (0, params[piece.param].numel())
    assert all((s == 1).all() for s in seen)
    assert sum(partition.nbytes) == sum(p.nbytes for p in params)
    if not whole:
        kinds = len({p.dtype for p in params})
        assert max(partition.nbytes) - min(partition.nbytes) <= 8 * kinds


@pytest.mark.parametrize("name", ["one large", "digits"])
def test_within_ten_percent_of_equal(name):
    for servers in (1, 2, 3, 4):
        nbytes = Partition(MODELS[name](), servers).nbytes
        assert all(abs(one * servers / sum(nbytes) - 1) < 0.1 for one in nbytes)
    # whole, it is one server's
    assert max(Partition(MODELS["one large"](), 4, whole=True).nbytes) == 400_000


@pytest.mark.parametrize(("name", "whole"), [*itertools.product(MODELS, (False, True))])
def test_there_and_back(name, whole):
    params = [torch.randn_like(p) for p in MODELS[name]()]
    partition = Partition(params, 3, whole)
    flats = partition.flatten(params)
    again = [torch.empty_like(p) for p in params]
    partition.spread(flats, again)
    assert all(torch.equal(a, b) for a, b in zip(params, again, strict=True))
    for server in range(3):
        chunks = partition.chunks(flats, server)
        assert sum(chunk.nbytes for chunk in chunks) == partition.nbytes[server] and all(
            c.numel() for c in chunks
        )
        for piece in partition.pieces[server]:
            values = params[piece.param].reshape(-1)[piece.first : piece.end]
            assert torch.equal(chunks[piece.chunk][piece.start : piece.start + len(values)], values)
    empty = partition.flatten([None] * len(params))
    assert [flat.shape for flat in empty] == [flat.shape for flat in flats] and not any(
        flat.any() for flat in empty
    )


def test_whole_parameters_are_balanced_by_bytes():
    """Ten numbers each, of 8, 4 and 4 bytes."""
    params = [torch.zeros(10, dtype=torch.float64), torch.zeros(10), torch.zeros(10)]
    assert Partition(params, 2, whole=True).nbytes == [80, 80]


def test_refused():
    with pytest.raises(ValueError, match="at least 1 server, not 0"):
        Partition([], 0)
