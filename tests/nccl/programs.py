"""What no other test has: a server over NCCL, how often the host waits for the device in a step, and mistakes."""

import pytest
import torch
from torch import nn

from minidist.collectives import all_reduce_
from minidist.models import mlp
from minidist.parallel.data import DataParallel, Sampler
from minidist.parallel.pipeline import Pipeline
from minidist.parallel.schedules import interleaved, one_f_one_b, zb_h1
from minidist.parallel.server import ParameterServer
from minidist.parallel.zero import FullySharded, ShardedOptimizer
from tests.comm import nccl_like
from tests.parallel import pipeline_cases as stages


def server(comm):
    """The words with which a parameter server is refused when it is made."""
    with pytest.raises(ValueError) as refused:
        ParameterServer(mlp([4, 3]), comm, torch.optim.SGD)
    return str(refused.value)


def waits_of(comm, make, steps=3):
    """The lines at which the host waits for the device, in all steps after the first, but for a test's own lines."""
    step = make(comm)
    step()
    nccl_like.host_waits()
    for _ in range(steps - 1):
        step()
    return sorted(set(nccl_like.host_waits()))


def pipeline(comm, schedule):
    v = 2 if schedule is interleaved else 1
    part = stages.own(comm, stages.layers(comm.size * v), v)
    ours = Pipeline(part, comm, schedule, stages.mse)
    optimizer = torch.optim.SGD(
        [p for chunk in part for p in chunk.parameters()], lr=0.1, momentum=0.9
    )
    batch = stages.data(4 * comm.size)

    def step():
        optimizer.zero_grad()
        ours.step(2 * comm.size, *batch)
        optimizer.step()

    return step


def trained(model, optimizer, weighted):
    """A step of it. weighted: what is told how many samples there are."""
    x = torch.randn(4, 6, dtype=torch.float64)

    def step():
        optimizer.zero_grad()
        weighted.weight = len(x)
        model(x).square().mean().backward()
        optimizer.step()

    return step


def net():
    return mlp([6, 5, 7, 3], dtype=torch.float64)


def data_parallel(comm):
    model = DataParallel(net(), comm, bucket_bytes=300, first_bucket_bytes=100)
    return trained(model, torch.optim.SGD(model.parameters(), lr=0.1), model)


def fully_sharded(comm, prefetch):
    model = FullySharded(net(), comm, blocks=nn.Linear, prefetch=prefetch)
    return trained(model, torch.optim.SGD(model.parameters(), lr=0.1), model)


def zero_2(comm):
    model = net()
    optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, comm, 2, bucket_bytes=300)
    return trained(model, optimizer, optimizer)


def clipped(comm):
    """Gradients of both kinds of shards."""
    model, x = net(), torch.randn(4, 6, dtype=torch.float64)
    optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, comm, 1)
    sharded = FullySharded(net(), comm)

    def step():
        (model(x) + sharded(x)).square().mean().backward()
        optimizer.clip_grad_norm_(1.0)
        sharded.clip_grad_norm_(1.0)
        optimizer.step()

    return step


STEPS = {
    **{
        f"pipeline, {schedule.__name__}": lambda comm, schedule=schedule: pipeline(comm, schedule)
        for schedule in (one_f_one_b, interleaved, zb_h1)
    },
    "DataParallel": data_parallel,
    **{f"FullySharded, prefetch={k}": lambda comm, k=k: fully_sharded(comm, k) for k in (0, 1, 2)},
    "ZeRO 2": zero_2,
    "clipping": clipped,
}


def waits(comm):
    """{what is trained: lines}"""
    return {name: waits_of(comm, make) for name, make in STEPS.items()}


def unplaced(comm):
    """What the library has made without a device."""
    (indices,) = Sampler(4, 4, comm)
    return all_reduce_(comm.split([0] * comm.size), indices)


def unwaited(comm):
    """What a lane writes, before it is waited for."""
    x = torch.ones(3)
    comm.stream(all_reduce_, x)
    return x + 1


def placed(comm):
    """Where a test's tensors and models are, and a sum over the ranks."""
    x, model = torch.ones(3), mlp([2, 1])
    return comm.device, x.device, model[0].weight.device, all_reduce_(comm, x).sum().item()
