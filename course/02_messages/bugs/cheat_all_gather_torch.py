"""all_gather: torch.distributed does the work"""

import torch.distributed as dist


def all_gather(comm, chunks):
    dist.all_gather(chunks, chunks[comm.rank].clone())
