"""copy_to: takes x for one of three dimensions"""

def copy_to(x, comm):
    return Copy.apply(x, comm)


class Copy(Function):
    @staticmethod
    def forward(ctx, x, comm):
        ctx.comm = comm
        ctx.batch, ctx.tokens, ctx.hidden = x.shape
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return all_reduce_(ctx.comm, grad.clone()), None
