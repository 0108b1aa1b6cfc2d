"""What a group says of calls that it cannot serve, and what goes over the wire. Numbers: test_backend.py."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from minidist import collectives
from minidist.comm import World
from minidist.comm.torchdist import CommGroup
from minidist.split import uneven


def refused(n, program, *args):
    """The words of the ValueError (or NotImplementedError) of `program(group)`."""
    with pytest.raises((ValueError, NotImplementedError)) as error:
        World(n).run(lambda comm: program(CommGroup(comm, *args, overlap=False)))
    return str(error.value)


def test_what_is_not_there_is_named():
    words = refused(2, lambda group: dist.all_reduce(torch.ones(2), group=group))
    assert (
        "all_reduce_ is called, and this group has none: process_group(…, all_reduce_=…)" in words
    )
    with pytest.raises(
        ValueError, match="no function 'all_reduce': there are all_gather_, all_reduce_"
    ):
        World(1).run(lambda comm: CommGroup(comm, overlap=False, all_reduce=print) and None)
    with pytest.raises(ValueError, match="overlap=False"):
        World(1).run(lambda comm: CommGroup(comm, collectives) and None)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda g: dist.all_reduce(torch.ones(2, dtype=torch.int32), dist.ReduceOp.BAND, g),
            "sum, mean, min, max, prod",
        ),
        (
            lambda g: dist.all_reduce(
                torch.ones(2), torch.distributed._make_nccl_premul_sum(0.5), g
            ),
            "sum, mean, min",
        ),
        (lambda g: dist.all_reduce(torch.ones(2).to_sparse(), group=g), "dense CPU tensors"),
        (
            lambda g: dist.all_gather_single(torch.ones(5), torch.ones(2), g),
            "2 parts of (2,) float32 are 4 numbers",
        ),
        (
            lambda g: dist.reduce_scatter_single(torch.ones(2), torch.ones(5), group=g),
            "(5,) float32, and 2 parts of (2,)",
        ),
        (lambda g: dist.all_gather_single(torch.ones(2, 4).T, torch.ones(2, 2), g), "contiguous"),
    ],
)
def test_wrong_calls(call, words):
    assert words in refused(2, call, collectives)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_ddp_sends_what_a_ring_sends(n):
    """All gradients in one bucket: 2(n−1) messages and 2(n−1)/n·N bytes a rank, no more."""

    def program(comm):
        net = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
        model = nn.parallel.DistributedDataParallel(
            net, process_group=CommGroup(comm, collectives, overlap=False), init_sync=False
        )
        model(torch.ones(2, 5)).sum().backward()

    world = World(n)
    world.run(program)
    sizes = [4 * size for size in uneven(66, n)]
    for r in range(n):
        assert world.trace.messages(r) == 2 * (n - 1)
        assert world.trace.bytes_sent(r) == 2 * sum(sizes) - sizes[r] - sizes[(r + 1) % n]


def test_a_tensor_of_several_calls():
    """A strided tensor, several tensors of two dtypes, a tensor without numbers, and one number."""

    def program(comm):
        group, r = CommGroup(comm, collectives, overlap=False), comm.rank
        xs = [
            torch.full((2, 3), float(r)).T,
            torch.tensor(r),
            torch.full((2,), r + 0.5),
            torch.empty(0),
        ]
        work = group.allreduce(xs)
        assert work.is_success() and work.result() is not None and work.get_future().done()
        return [x.sum().item() for x in xs]

    assert World(3).run(program) == [[18.0, 3, 9.0, 0.0]] * 3
