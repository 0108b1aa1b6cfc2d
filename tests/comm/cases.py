"""Every call that PyTorch's own makes of a process group, and two of its trainers, on any group."""

import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from minidist import collectives
from minidist.comm.processgroup import process_group
from tests.largest import largest

OPS = [
    dist.ReduceOp.SUM,
    dist.ReduceOp.MIN,
    dist.ReduceOp.MAX,
    dist.ReduceOp.PRODUCT,
    dist.ReduceOp.AVG,
]


def group_of(comm, kind):
    """gloo's default group, or ours: "lane" beside the program, "here" in it."""
    return (
        dist.group.WORLD
        if kind == "gloo"
        else process_group(comm, collectives, overlap=kind == "lane")
    )


def calls(comm, kind, dtype=torch.float64):
    """What each collective gives on whole numbers, where the order of addition does not matter."""
    group = group_of(comm, kind)
    n = comm.size
    r = comm.rank
    give = lambda *shape: (
        torch.arange(24)[: torch.Size(shape).numel()].view(shape) % 5 + r + 1
    ).to(dtype)
    room = lambda *shape: torch.zeros(shape, dtype=dtype)
    found = []

    def ask(call, *results, **options):
        work = call(group=group, async_op=True, **options)
        work.wait()
        assert work.is_completed() or kind == "gloo"  # whose reduce-scatter never says so
        found.extend(x.clone() for x in results)

    for op in OPS[: 5 if dtype.is_floating_point else 4]:
        x = give(7)
        y = give(2, 3).T
        z = give(3)
        ask(functools.partial(dist.all_reduce, x), x, op=op)
        ask(functools.partial(dist.all_reduce, y), y, op=op)
        ask(functools.partial(dist.reduce, z, n - 1), *[z] * (r == n - 1), op=op)
        x, outs = give(3 * n), [room(3) for _ in range(2)]
        ask(functools.partial(dist.reduce_scatter_single, outs[0], x), outs[0], x, op=op)
        ask(functools.partial(dist.reduce_scatter, outs[1], list(x.chunk(n))), outs[1], op=op)
    x = give(2, 3)
    ask(functools.partial(dist.broadcast, x, n - 1), x)
    x, out = give(2, 3), room(2 * n, 3)
    ask(functools.partial(dist.all_gather_single, out, x), out, x)
    outs = [room(2, 3) for _ in range(n)]
    ask(functools.partial(dist.all_gather, outs, x), *outs)
    outs = [room(2, 3) for _ in range(n)] if r == n - 1 else None
    ask(functools.partial(dist.gather, x, outs, n - 1), *outs or [])
    out = room(2)
    ask(functools.partial(dist.scatter, out, list(give(n, 2)) if r == 0 else None, 0), out)
    out = room(2 * n)
    ask(functools.partial(dist.all_to_all_single, out, give(2 * n)), out)
    out, sizes = room(n * (r + 1)), list(range(1, n + 1))
    ask(functools.partial(dist.all_to_all_single, out, give(sum(sizes)), [r + 1] * n, sizes), out)
    ask(dist.barrier)
    objects = [None] * n
    dist.all_gather_object(objects, {"rank": r}, group=group)
    assert objects == [{"rank": i} for i in range(n)]
    return found


class Net(nn.Module):
    """Layers that no n divides, a norm with buffers, a frozen layer, and one that is not used."""

    def __init__(self, norm=True, unused=True, dtype=torch.float64):
        super().__init__()
        torch.manual_seed(0)
        norms = [nn.BatchNorm1d(7)] if norm else []
        self.layers = nn.Sequential(
            nn.Linear(5, 7), *norms, nn.Tanh(), nn.Linear(7, 3, bias=False), nn.Linear(3, 1)
        )
        self.layers[0].bias.requires_grad_(False)
        self.unused = nn.Linear(2, 2) if unused else None
        self.to(dtype)

    def forward(self, x):
        return self.layers(x)


def rows(comm, dtype):
    x = torch.randn(24, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x[comm.rank :: comm.size].to(dtype)


def train(model, x, clip=None, steps=3, accumulate=None):
    """Its losses."""
    optimizer, losses = (
        torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.01),
        [],
    )
    for step in range(steps):
        optimizer.zero_grad()
        if accumulate is not None:
            with accumulate():
                model(x.flip(1)).square().mean().backward()
        loss = model(x).square().mean()
        loss.backward()
        if clip is not None and step % 2:
            clip()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def ddp(comm, group, dtype=torch.float64):
    """Losses and state after 3 steps with accumulation, small buckets, buffers, a frozen and an unused layer."""
    net = Net(dtype=dtype)
    if comm.rank:
        nn.init.zeros_(net.layers[0].weight)  # must come from rank 0
    model = nn.parallel.DistributedDataParallel(
        net, process_group=group, bucket_cap_mb=1e-4, find_unused_parameters=True
    )
    losses = train(model, rows(comm, dtype), accumulate=model.no_sync)
    return losses + list(net.state_dict().values())


def fsdp(comm, group, dtype=torch.float64, mesh=None):
    """Losses and whole parameters after 3 steps, the second one clipped by the global norm."""
    mesh, net = (
        mesh or DeviceMesh.from_group(group, "cpu"),
        Net(norm=False, unused=False, dtype=dtype),
    )
    for layer in net.layers:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    clip = lambda: nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    return train(net, rows(comm, dtype), clip) + [
        p.full_tensor() for p in net.state_dict().values()
    ]


def both(comm, kind, dtype=torch.float64):
    group = group_of(comm, kind)
    return ddp(comm, group, dtype), fsdp(comm, group, dtype)


def far(ours, theirs):
    """The largest difference of two lists of tensors."""
    return largest(
        float((a.double() - b.double()).abs().max()) for a, b in zip(ours, theirs, strict=True)
    )
