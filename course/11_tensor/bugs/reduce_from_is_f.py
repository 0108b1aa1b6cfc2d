"""reduce_from: f and g are swapped"""

def reduce_from(x, comm):
    return Reduce.apply(x, comm)


class Reduce(Function):
    @staticmethod
    def forward(ctx, x, comm):
        ctx.comm = comm
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return all_reduce_(ctx.comm, grad.clone()), None
