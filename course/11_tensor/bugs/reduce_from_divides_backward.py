"""reduce_from: the gradient is divided by n"""

def reduce_from(x, comm):
    return Reduce.apply(x, comm)


class Reduce(Function):
    @staticmethod
    def forward(ctx, x, comm):
        ctx.comm = comm
        return all_reduce_(comm, x.clone())

    @staticmethod
    def backward(ctx, grad):
        return grad / ctx.comm.size, None
