"""Train a network on handwritten digits with PyTorch's own DDP, or FSDP2, on a ring written with send and receive.

    python examples/train_ddp.py --ranks 4                                  # DDP, in this process, on a virtual clock
    python examples/train_ddp.py --ranks 4 --runner processes --fsdp        # FSDP2, processes of this machine
    torchrun --nproc-per-node 4 examples/train_ddp.py                       # torch.distributed

All print the same losses, to rounding, on any number of ranks that divides the batch.
"""

import torch
from settings import at_least
from started import ended, parsed, parser, run, same_losses
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from minidist import collectives
from minidist.comm.processgroup import CommGroup, process_group
from minidist.models import mlp
from minidist.tasks import digits

COMBINE = {"sum": torch.add, "min": torch.minimum, "max": torch.maximum, "prod": torch.mul}


def all_gather_(comm, chunks):
    """chunks[r] is filled on rank r; afterwards all are, everywhere."""
    n, r = comm.size, comm.rank
    for step in range(n - 1):
        comm.sendrecv(chunks[(r - step) % n], (r + 1) % n, chunks[(r - 1 - step) % n], (r - 1) % n)


def reduce_scatter_(comm, chunks, op):
    """chunks[r] becomes, on rank r, the combination of all ranks' chunks[r]."""
    n, r = comm.size, comm.rank
    for step in range(n - 1):
        own = chunks[(r - 2 - step) % n]
        arrived = torch.empty_like(own)
        comm.sendrecv(chunks[(r - 1 - step) % n], (r + 1) % n, arrived, (r - 1) % n)
        COMBINE[op](own, arrived, out=own)


def all_reduce_(comm, x, op):
    """x, one flat tensor, becomes the combination of all ranks' x."""
    chunks = x.tensor_split(comm.size)
    reduce_scatter_(comm, chunks, op)
    all_gather_(comm, chunks)


OWN = {
    "all_gather_": all_gather_,
    "reduce_scatter_": reduce_scatter_,
    "all_reduce_": all_reduce_,
}


def program(comm, task, steps, batch, lr, fsdp, world):
    """One rank's training. Returns the mean loss of each step."""
    x, y, *_ = task
    model = mlp([64, 128, 10], dtype=x.dtype)
    if world:
        group = CommGroup(comm, collectives, overlap=False, **OWN)
    else:
        group = process_group(comm, collectives, **OWN)
    if fsdp:
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    losses = []
    for step in range(steps):
        rows = torch.arange(step * batch, (step + 1) * batch)[comm.rank :: comm.size] % len(x)
        optimizer.zero_grad()
        loss = cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        losses.append(collectives.all_reduce_(comm, loss.detach().clone(), "mean").item())
        if comm.rank == 0 and (step + 1) % 10 == 0:
            print(f"step {step + 1:3}   loss {losses[-1]:.12f}", flush=True)
    return {"ranks": comm.size, "losses": losses}


def main():
    flags = parser(__doc__)
    flags.add_argument("--steps", type=at_least(0), default=50)
    flags.add_argument(
        "--batch", type=at_least(1), default=120, help="samples of a step, all ranks together"
    )
    flags.add_argument("--lr", type=at_least(0, float), default=0.1)
    flags.add_argument("--fsdp", action="store_true", help="FSDP2 in place of DDP; not in a World")
    args = parsed(flags)
    if args.batch % args.ranks:
        flags.error(f"--batch {args.batch} is not a multiple of {args.ranks} ranks")
    if args.backend == "nccl":
        flags.error("--backend nccl: this ring is for CPUs, take gloo")
    args.backend = "gloo"
    world = args.runner == "world"
    if args.fsdp and world:
        flags.error("--fsdp: FSDP2 has one rank a process, take --runner processes")
    task = digits(getattr(torch, args.dtype))
    given = (task, args.steps, args.batch, args.lr, args.fsdp, world)
    return same_losses(run(args, program, *given))


if __name__ == "__main__":
    raise SystemExit(ended(main))
