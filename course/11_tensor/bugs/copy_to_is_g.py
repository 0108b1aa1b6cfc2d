"""copy_to: f and g are swapped"""

def copy_to(x, comm):
    return Copy.apply(x, comm)


class Copy(Function):
    @staticmethod
    def forward(ctx, x, comm):
        ctx.comm = comm
        return all_reduce_(comm, x.clone())

    @staticmethod
    def backward(ctx, grad):
        return grad, None
