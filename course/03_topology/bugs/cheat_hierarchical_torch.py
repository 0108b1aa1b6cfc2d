"""hierarchical: torch.distributed does the work"""

import torch.distributed as dist


def hierarchical(comm, x, per_node):
    dist.all_reduce(x)
