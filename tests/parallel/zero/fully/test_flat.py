"""The flat buffer: cuts, strides, what is there when it is free and when it is whole."""

import pytest
import torch
from torch import nn

from minidist.comm import World
from minidist.comm.base import Host
from minidist.parallel.zero.fully.flat import Flat, Held


def params(seed):
    torch.manual_seed(seed)
    shapes = [
        torch.randn(3, 2).t(),
        torch.randn(()),
        torch.randn(0, 3),
        torch.randn(2, 4, 3, 3).to(memory_format=torch.channels_last),
        torch.randn(5),
    ]
    return [nn.Parameter(shape.double(), requires_grad=i != 4) for i, shape in enumerate(shapes)]


def flat_of(comm, dtype=None, seed=0, offload=False):
    module = nn.Module()
    held = []
    for i, p in enumerate(params(seed)):
        setattr(module, f"p{i}", p)
        held.append(Held(f"p{i}", p, [(module, f"p{i}", f"p{i}")]))
    return module, Flat(held, comm, dtype, comm.host if offload else Host(comm.device))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 90])
def test_shards_put_together(n):
    def program(comm):
        _, flat = flat_of(comm, seed=comm.rank)
        return (
            flat.sizes,
            flat.shard,
            [h.piece.numel() for h in flat.held],
            [h.strides for h in flat.held],
        )

    results = World(n).run(program)
    whole = torch.cat([shard for _, shard, *_ in results])
    assert results[0][0] == [84 // n + (r < 84 % n) for r in range(n)]
    # in the order of its memory
    memory = [p.detach().as_strided((p.numel(),), (1,)) for p in params(0)]
    memory[2] = torch.empty(0)
    assert torch.equal(whole, torch.cat(memory))
    for *_, strides in results:
        assert strides[:2] == [(1, 2), ()] and strides[3] == (36, 1, 12, 4)
    assert [sum(counts) for counts in zip(*(counts for *_, counts, _ in results), strict=True)] == [
        6,
        1,
        0,
        72,
        5,
    ]


@pytest.mark.parametrize("dtype", [None, torch.float16])
@pytest.mark.parametrize("offload", [False, True])
def test_whole_and_free(dtype, offload):
    def program(comm):
        module, flat = flat_of(comm, dtype, offload=offload)
        seen = []
        for _ in range(2):
            assert flat.full.untyped_storage().nbytes() == 0
            assert all(getattr(module, f"p{i}") is h.piece for i, h in enumerate(flat.held))
            flat.allocate()
            flat.show()
            seen.append([getattr(module, f"p{i}").detach().clone() for i in range(5)])
            assert all(getattr(module, f"p{i}") is h.whole for i, h in enumerate(flat.held))
            flat.release()
            with torch.no_grad():
                flat.held[0].piece.mul_(2)  # a step of the optimizer is seen in the next gather
        return seen, flat.trains

    (first, second), trains = World(1).run(program)[0]
    for i, (a, b, p) in enumerate(zip(first, second, params(0), strict=True)):
        assert (
            torch.equal(a, p.to(a.dtype))
            and a.stride() == p.stride()
            and a.dtype == dtype
            or a.dtype == p.dtype
        )
        assert torch.equal(b, a * 2 if i == 0 else a)
    assert trains


def test_gathering_again_is_no_change_to_autograd():
    """What forward has saved is full of the same values in backward, and torch's check for changes is at peace."""

    def program(comm):
        _, flat = flat_of(comm)
        flat.allocate()
        w = flat.held[0].whole
        x = torch.ones(2, dtype=torch.float64, requires_grad=True)
        y = (w.t() @ x).sum()
        flat.release()
        flat.allocate()
        y.backward()
        return x.grad, w.detach().clone()

    grad, w = World(1).run(program)[0]
    assert torch.equal(grad, w.sum(1))
