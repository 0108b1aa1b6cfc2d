"""reduce_from: the mean"""

def reduce_from(x, comm):
    return Reduce.apply(x, comm)


class Reduce(Function):
    @staticmethod
    def forward(ctx, x, comm):
        ctx.comm = comm
        return all_reduce_(comm, x.clone(), op="mean")

    @staticmethod
    def backward(ctx, grad):
        return grad, None
