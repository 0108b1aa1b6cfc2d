"""What a server holds: pieces that are views, stepped by any optimizer."""

import pytest
import torch

from minidist.parallel.server import Partition
from minidist.parallel.server.shard import Shard
from minidist.train.fuse import FlatAdamW
from tests.parallel.cases import difference, made


def shards(params, servers, optimizer, whole=False):
    partition = Partition(params, servers, whole)
    return partition, [Shard(partition, server, optimizer) for server in range(servers)]


def gathered(partition, shards, like):
    """The parameters as all servers together hold them."""
    flats = partition.flatten(like)
    for server, shard in enumerate(shards):
        for chunk, buffer in zip(partition.chunks(flats, server), shard.buffers, strict=True):
            chunk.copy_(buffer)
    found = [torch.empty_like(p) for p in like]
    partition.spread(flats, found)
    return found


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),  # looks at rows and columns
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("model", ["hard", "mixed"])
def test_pieces_are_stepped_as_the_whole(name, model):
    params = [p for p in made(model, 0).parameters() if p.requires_grad]
    whole = [torch.nn.Parameter(p.detach().clone()) for p in params]
    optimizer = OPTIMIZERS[name](whole)
    partition, servers = shards(params, 3, OPTIMIZERS[name], whole=name == "adafactor")
    random = torch.Generator().manual_seed(0)
    for _ in range(4):
        gradients = [torch.randn(p.shape, generator=random, dtype=p.dtype) for p in params]
        for p, gradient in zip(whole, gradients, strict=True):
            p.grad = gradient
        optimizer.step()
        flats = partition.flatten(gradients)
        for server, shard in enumerate(servers):
            shard.step(partition.chunks(flats, server), [1.0] * len(shard.pieces))
    # of a strided parameter it adds up rows in another order
    bound = 1e-14 if name == "adafactor" else 0.0
    assert difference(gathered(partition, servers, params), whole) <= bound
    assert [shard.version for shard in servers] == [4] * 3


def test_pieces_of_an_optimizer_that_moves_them():
    params = [torch.randn(5, 3), torch.randn(4)]
    _, (shard,) = shards(params, 1, lambda p: FlatAdamW(p, lr=0.1))
    before = [buffer.clone() for buffer in shard.buffers]
    shard.step([torch.ones(19)], [1.0, 1.0])
    assert torch.allclose(shard.buffers[0], before[0] - 0.1 - 0.1 * 1e-2 * before[0], atol=1e-6)


def test_a_piece_without_a_gradient_is_left_alone():
    params = [torch.ones(3), torch.ones(2)]
    _, (shard,) = shards(params, 1, lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.5))
    shard.step([torch.zeros(5)], [0.0, 1.0])
    assert shard.buffers[0].tolist() == pytest.approx([1, 1, 1, 0.95, 0.95])
    assert len(shard.optimizer.state) == 1 and all(p.grad is None for p in shard.pieces)


def test_shapes():
    """Whole where it is whole, flat where it is cut."""
    _, servers = shards([torch.zeros(4, 2), torch.zeros(4)], 2, OPTIMIZERS["sgd"])
    assert [[tuple(p.shape) for p in shard.pieces] for shard in servers] == [[(6,)], [(2,), (4,)]]
    _, servers = shards([torch.zeros(4, 2), torch.zeros(4)], 2, OPTIMIZERS["sgd"], whole=True)
    assert [[tuple(p.shape) for p in shard.pieces] for shard in servers] == [[(4, 2)], [(4,)]]


def test_a_server_without_a_piece():
    _, servers = shards([torch.zeros(1)], 3, OPTIMIZERS["sgd"])
    assert [shard.optimizer is None for shard in servers] == [False, True, True]
    servers[2].step([], [])
    assert servers[2].version == 1 and servers[2].room() == []
