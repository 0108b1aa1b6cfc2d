"""PyTorch's own DistributedDataParallel on an answer: in a World, or in real processes beside the backward pass.

It needs no torch.distributed but a group. What the answer is not about, DDP's broadcast of the order of its buckets, is
here, from send and receive.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import torch
from torch import Tensor, nn

from minidist.comm.base import Comm
from minidist.comm.torchdist import CommGroup
from minidist.comm.world.world import WorldComm

SIZES = (35, 7, 21, 3)
RATE = 0.05
STEPS = 3  # of the four parameters: 5 × 7 and 7, 7 × 3 and 3


def network(start: Tensor) -> nn.Module:
    """Two layers that hold the numbers of `start`, (66,) float64."""
    net = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    for p, end, size in zip(net.parameters(), accumulate(SIZES), SIZES, strict=True):
        p.data = start[end - size : end].clone().view(p.shape)
    return net


def flat(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


def loss_of(net: nn.Module, x: Tensor) -> Tensor:
    return net(x).square().sum()


def broadcast_(comm: Comm, x: Tensor, root: int) -> None:
    for r in range(comm.size):
        if comm.rank == root and r != root:
            comm.send(x, r)
    if comm.rank != root:
        comm.recv(x, root)


def gather_sizes_(comm: Comm, chunks: list[Tensor]) -> None:
    """What DDP compares when it begins: every rank's number of parameters."""
    for root, chunk in enumerate(chunks):
        broadcast_(comm, chunk, root)


def train(
    comm: Comm, start: Tensor, x: Tensor, ring: Callable, hook: Callable | None = None
) -> list[Tensor]:
    """All parameters after each of three steps of SGD on this rank's `x`, (B, 5); buckets of one or two tensors."""
    group = CommGroup(
        comm,
        overlap=not isinstance(comm, WorldComm),
        all_reduce_=ring,
        broadcast_=broadcast_,
        all_gather_=gather_sizes_,
    )
    net, seen = network(start), []
    model = nn.parallel.DistributedDataParallel(net, process_group=group, bucket_cap_mb=1e-4)
    if hook is not None:
        model.register_comm_hook(comm, lambda state, bucket: _ready(comm, hook(comm, bucket)))
    for _ in range(STEPS):
        model.zero_grad()
        loss_of(model, x).backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= RATE * p.grad
        seen.append(flat(net))
    return seen


def _ready(comm: Comm, future):
    """The hook's future. In a World C++ would wait without end for one that a lane has still to set: wait here."""
    if isinstance(future, torch._C.Future) and isinstance(comm, WorldComm) and not future.done():
        comm.stream(lambda lane: None).wait()  # comes after what was put there before
        if not future.done():
            raise RuntimeError("the hook's future is never set: DDP would wait without end")
    return future
