"""ddp_ring: calls torch.distributed's"""

def ddp_ring(comm, x, op):
    torch.distributed.all_reduce(x)
