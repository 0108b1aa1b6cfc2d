"""What a group says of calls that it cannot serve, and what goes over the wire."""

import functools
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from minidist import collectives
from minidist.comm import World, launch
from minidist.comm.processgroup import CommGroup, process_group
from minidist.split import uneven
from tests.comm.cases import both, calls, ddp, far, fsdp, group_of
from tests.largest import largest
from tests.size import FULL


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
        assert work.is_completed() and work.get_future().done()
        return [x.sum().item() for x in xs]

    assert World(3).run(program) == [[18.0, 3, 9.0, 0.0]] * 3


# ------------------------------------------------------------
# Who waits gets the result when it is there, or the error: in Python, by the future, in C++.


class Broken(Exception):
    pass


def fails(comm, x, op):
    raise Broken("of no use")


def waited(comm):
    """A collective that waits for us: not done before, done after."""
    go = threading.Event()
    group = CommGroup(
        comm, all_reduce_=lambda comm, x, op: go.wait() and x.add_(1), barrier=lambda comm: None
    )
    x = torch.zeros(2)
    work, behind = group.allreduce([x]), group.barrier()
    future = work.get_future()
    told = future.then(lambda future: future.value()[0].sum().item())
    time.sleep(0.05)
    before = work.is_completed(), behind.is_completed(), x.sum().item()
    go.set()
    assert work.wait() and behind.wait() and work.get_future().wait()[0] is x
    return before, (work.is_completed(), x.sum().item(), told.wait())


def test_it_returns_at_once_and_is_done_later():
    assert launch(waited, 2) == [((False, False, 0.0), (True, 2.0, 2.0))] * 2


def errors(comm):
    group, found = CommGroup(comm, all_reduce_=fails), []
    work = group.allreduce([torch.ones(1)])
    for wait in (work.wait, work.get_future().wait):
        with pytest.raises((Broken, RuntimeError), match="of no use"):
            wait()
    found.append(work.is_completed())
    model = nn.parallel.DistributedDataParallel(
        nn.Linear(2, 2), process_group=group, init_sync=False
    )
    with pytest.raises(RuntimeError, match="of no use"):
        model(torch.ones(1, 2)).sum().backward()
    return found


def test_an_error_reaches_whoever_waits():
    with pytest.raises(Broken):  # of DDP's work: nobody but C++ waited for it
        launch(errors, 2)


def test_an_error_in_place():
    def program(comm):
        dist.all_reduce(torch.ones(1), group=CommGroup(comm, overlap=False, all_reduce_=fails))

    with pytest.raises(Broken, match="of no use"):
        World(2).run(program)


# ------------------------------------------------------------
# PyTorch's own DDP and FSDP2 over our collectives give what they give over gloo.
#
# Two numbers have one sum in either order: at n = 2 everything is equal bit for bit. From n = 3 on gloo adds in another
# order than our ring, and float64 differs in its last digits.


@functools.cache
def gloo(program, n, *args):
    return launch(program, n, "gloo", *args, transport="gloo")


DTYPES = {
    1: [torch.float64],
    2: [torch.float64, torch.float32, torch.bfloat16],
    3: [torch.float64, torch.float32],
    4: [torch.float64, torch.float32] if FULL else [torch.float64],
}
WAYS = [(2, "lane", "shm"), (3, "here", "shm"), (3, "lane", "gloo"), (4, "lane", "shm")]
EVERY_CALL = [
    (1, "lane", torch.float64),
    (2, "lane", torch.int64),
    (3, "lane", torch.float64),
    (3, "here", torch.int64),
    (4, "here", torch.float64),
]
if FULL:
    KINDS = [("lane", "shm"), ("here", "shm"), ("lane", "gloo")]
    WAYS = [(n, *kind) for n in (2, 3, 4) for kind in KINDS]
    EVERY_CALL += [(n, "lane", torch.float64) for n in (2, 4, 5)]
BOUNDS = {torch.float64: 1e-12, torch.float32: 2e-6}


def trained(comm, kind):
    """In each dtype: one after another costs less than processes for each."""
    return [both(comm, kind, dtype) for dtype in DTYPES[comm.size]]


@pytest.mark.parametrize(("n", "kind", "transport"), WAYS)
def test_ddp_and_fully_shard(n, kind, transport, figure):
    """In other dtypes than float64 fully_shard asks for a mean, and for sums in float64."""
    for ours, theirs in zip(
        launch(trained, n, kind, transport=transport), gloo(trained, n), strict=True
    ):
        for dtype, mine, its in zip(DTYPES[n], ours, theirs, strict=True):
            bound = 0 if n == 2 else BOUNDS[dtype]
            apart = largest(far(x, y) for x, y in zip(mine, its, strict=True))
            assert apart <= bound, dtype
            figure(f"n={n}, {dtype}, {kind}, {transport}: {apart:.1e} from gloo's")


@pytest.mark.parametrize(("n", "kind", "dtype"), EVERY_CALL)
def test_every_call(n, kind, dtype, figure):
    for ours, theirs in zip(launch(calls, n, kind, dtype), gloo(calls, n, dtype), strict=True):
        assert len(ours) == len(theirs) and all(
            a.equal(b) for a, b in zip(ours, theirs, strict=True)
        )
    figure(f"n={n}, {kind}, {dtype}: {len(ours)} results of each rank are gloo's, bit for bit")


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


def synchronized(comm):
    group = process_group(comm, collectives)
    x = torch.ones(1 << 16)
    work = dist.all_reduce(x, group=group, async_op=True)
    work.synchronize()
    return x[0].item(), x[-1].item()


def test_synchronize_waits():
    assert launch(synchronized, 2) == [(2, 2)] * 2
