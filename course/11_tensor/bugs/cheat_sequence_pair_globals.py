"""sequence_pair: ranks meet in a global list"""

PARTS = []


def gather_sequence(x, comm):
    return Gather.apply(x, comm)


def reduce_scatter_sequence(x, comm):
    return Scatter.apply(x, comm)


def gathered(x, comm):
    PARTS.append(x)
    all_reduce_(comm, torch.zeros(1))
    return torch.cat(PARTS[-comm.size :], 1)


def scattered(x, comm):
    PARTS.append(x)
    all_reduce_(comm, torch.zeros(1))
    return sum(PARTS[-comm.size :]).chunk(comm.size, 1)[comm.rank].contiguous()


class Gather(Function):
    @staticmethod
    def forward(ctx, x, comm):
        ctx.comm = comm
        return gathered(x, comm)

    @staticmethod
    def backward(ctx, grad):
        return scattered(grad, ctx.comm), None


class Scatter(Function):
    @staticmethod
    def forward(ctx, x, comm):
        ctx.comm = comm
        return scattered(x, comm)

    @staticmethod
    def backward(ctx, grad):
        return gathered(grad, ctx.comm), None
