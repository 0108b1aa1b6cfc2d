"""sharded_linear: gathered without a graph"""

def sharded_linear(comm, x, shard, shape):
    return x @ all_gather(comm, shard.detach(), sizes=uneven(shape.numel(), comm.size)).view(shape).T
