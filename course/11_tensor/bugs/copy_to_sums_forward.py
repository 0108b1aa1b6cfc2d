"""copy_to: all-reduce forward and backward"""

def copy_to(x, comm):
    return Copy.apply(x, comm)


class Copy(Function):
    @staticmethod
    def forward(ctx, x, comm):
        ctx.comm = comm
        return all_reduce_(comm, x.clone())

    @staticmethod
    def backward(ctx, grad):
        return all_reduce_(ctx.comm, grad.clone()), None
