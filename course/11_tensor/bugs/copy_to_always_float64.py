"""copy_to: gradients travel as float64, whatever came in"""

def copy_to(x, comm):
    return Copy.apply(x, comm)


class Copy(Function):
    @staticmethod
    def forward(ctx, x, comm):
        ctx.comm = comm
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return all_reduce_(ctx.comm, grad.double().clone()), None
