"""sharded_linear: the whole weight is saved"""

def sharded_linear(comm, x, shard, shape):
    """x·Wᵀ, of a weight in shards."""
    return Gathered.apply(x, shard, comm, shape)


def gathered(comm, shard, shape):
    return all_gather(comm, shard, sizes=uneven(shape.numel(), comm.size)).view(shape)


class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard, comm, shape):
        weight = gathered(comm, shard, shape)
        ctx.save_for_backward(x, weight)
        ctx.comm, ctx.shape = comm, shape
        return x @ weight.T

    @staticmethod
    def backward(ctx, dy):
        (x, weight), comm = ctx.saved_tensors, ctx.comm
        dx = dy @ weight
        dw = reduce_scatter(comm, (dy.T @ x).flatten(), sizes=uneven(ctx.shape.numel(), comm.size))
        return dx, dw / comm.size, None, None
