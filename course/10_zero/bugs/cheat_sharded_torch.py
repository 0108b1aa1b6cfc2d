"""sharded: PyTorch's sharded optimizer"""

def sharded(comm, params, owner, optimizer):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(params, torch.optim.Adam, lr=0.05).step
