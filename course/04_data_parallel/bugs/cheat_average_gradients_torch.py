"""average_gradients: PyTorch's DistributedDataParallel does the work"""

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def average_gradients(comm, module):
    dist.init_process_group("gloo", rank=comm.rank, world_size=comm.size, store=dist.HashStore())
    DistributedDataParallel(module)
