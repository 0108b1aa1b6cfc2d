"""The ring all-reduce of lesson 02 as a script: each rank brings random numbers, all end with their sum.

torchrun --nproc-per-node 4 examples/ring.py
torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 examples/ring.py
"""

import torch

from minidist.comm import Comm, from_env


def ring_all_reduce(comm: Comm, x: torch.Tensor) -> torch.Tensor:
    """Replace x by the sum over all ranks: a reduce-scatter, then an all-gather, on a ring."""
    n, r = comm.size, comm.rank
    right, left = (r + 1) % n, (r - 1) % n
    chunks = x.tensor_split(n)
    for k in range(1, n):
        own = chunks[(r - k - 1) % n]
        arriving = torch.empty_like(own)
        comm.sendrecv(chunks[(r - k) % n], right, arriving, left)
        own += arriving
    for k in range(n - 1):
        comm.sendrecv(chunks[(r - k) % n], right, chunks[(r - k - 1) % n], left)
    return x


def random_sum(comm: Comm, length: int = 100_003) -> torch.Tensor:
    """The sum of what all ranks draw, each from a generator seeded with its rank."""
    generator = torch.Generator().manual_seed(comm.rank)
    x = torch.randn(length, generator=generator).to(comm.device)
    return ring_all_reduce(comm, x)


if __name__ == "__main__":
    comm = from_env()
    total = random_sum(comm)
    if comm.rank == 0:
        print(f"{comm.size} ranks, the first sum is {total[0].item():.6f}")
