"""halving_doubling: torch.distributed does the work"""

import torch.distributed as dist


def halving_doubling(comm, x):
    dist.all_reduce(x)
