"""PyTorch's own DDP and FSDP2 over our collectives give what they give over gloo.

Two numbers have one sum in either order: at n = 2 everything is equal bit for bit. From n = 3 on gloo adds in another
order than our ring, and float64 differs in its last digits.
"""

import functools

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from minidist import collectives
from minidist.comm import World, launch
from minidist.comm.torchdist import CommGroup, process_group
from tests.comm.torchdist.cases import both, calls, ddp, far, fsdp, group_of


@functools.cache
def gloo(program, n, *args):
    return launch(program, n, "gloo", *args, transport="gloo")


DTYPES = {
    1: [torch.float64],
    2: [torch.float64, torch.float32, torch.bfloat16],
    3: [torch.float64, torch.float32],
    4: [torch.float64],
}
BOUNDS = {torch.float64: 1e-12, torch.float32: 2e-6}


def trained(comm, kind):
    """In each dtype: one after another costs less than processes for each."""
    return [both(comm, kind, dtype) for dtype in DTYPES[comm.size]]


@pytest.mark.parametrize(
    ("n", "kind", "transport"),
    [(2, "lane", "shm"), (3, "here", "shm"), (3, "lane", "gloo"), (4, "lane", "shm")],
)
def test_ddp_and_fully_shard(n, kind, transport):
    """In other dtypes than float64 fully_shard asks for a mean, and for sums in float64."""
    for ours, theirs in zip(
        launch(trained, n, kind, transport=transport), gloo(trained, n), strict=True
    ):
        for dtype, mine, its in zip(DTYPES[n], ours, theirs, strict=True):
            bound = 0 if n == 2 else BOUNDS[dtype]
            assert all(far(x, y) <= bound for x, y in zip(mine, its, strict=True)), dtype


@pytest.mark.parametrize(
    ("n", "kind", "dtype"),
    [
        (1, "lane", torch.float64),
        (2, "lane", torch.int64),
        (3, "lane", torch.float64),
        (3, "here", torch.int64),
        (4, "here", torch.float64),
    ],
)
def test_every_call(n, kind, dtype):
    for ours, theirs in zip(launch(calls, n, kind, dtype), gloo(calls, n, dtype), strict=True):
        assert len(ours) == len(theirs) and all(
            a.equal(b) for a, b in zip(ours, theirs, strict=True)
        )


def sharded_and_copied(comm, kind):
    """HSDP: two groups of a mesh, made from the default group."""
    group_of(comm, kind)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
    kinds = {type(mesh.get_group(name)) for name in mesh.mesh_dim_names}
    return fsdp(comm, None, mesh=mesh), kinds == {CommGroup}


def test_a_mesh_of_two_dimensions():
    theirs = launch(sharded_and_copied, 4, "gloo", transport="gloo")
    for (ours, mine), (its, _) in zip(launch(sharded_and_copied, 4, "lane"), theirs, strict=True):
        assert mine and far(ours, its) < 1e-12


def in_a_world(comm):
    return ddp(comm, CommGroup(comm, collectives, overlap=False))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_ddp_in_a_world(n):
    world = World(n)
    for ours, ((theirs, _), *_) in zip(world.run(in_a_world), gloo(trained, n), strict=True):
        # a World may compute with several threads, a process has one
        assert far(ours, theirs) < 1e-12
    assert n == 1 or world.trace.messages(0) > 0


def two_groups(comm, other):
    """Both under way at once, of other functions; each on a channel of its own."""
    mine = process_group(comm, collectives)
    yours = process_group(comm, collectives, all_reduce_=lambda comm, x, op: x.fill_(other))
    part = dist.new_group([0, 2])
    xs = [torch.full((2,), float(comm.rank)) for _ in range(3)]
    works = [
        dist.all_reduce(x, group=g, async_op=True) for x, g in zip(xs, (mine, yours), strict=False)
    ]
    if comm.rank != 1:
        works.append(dist.all_reduce(xs[2], group=part, async_op=True))
    for work in reversed(works):
        work.wait()
    names = {g.group_name for g in (mine, yours)}
    dist.destroy_process_group()
    return [x[0].item() for x in xs], len(names), dist.is_initialized()


def test_several_groups():
    assert launch(two_groups, 3, 7.0) == [
        ([3.0, 7.0, 2.0], 2, False),
        ([3.0, 7.0, 1.0], 2, False),
        ([3.0, 7.0, 2.0], 2, False),
    ]


def test_a_comm_of_other_ranks():
    def program(comm):
        half = comm.split(comm.rank % 2)
        with pytest.raises(
            ValueError,
            match=rf"rank {half.rank} of 2, and torch.distributed is rank {comm.rank} of 4",
        ):
            process_group(half, collectives)

    launch(program, 4, transport="gloo")
    with pytest.raises(ValueError, match="one rank a process"):
        World(2).run(lambda comm: process_group(comm, collectives) and None)
    assert not dist.is_initialized()
