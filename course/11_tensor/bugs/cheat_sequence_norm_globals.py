"""sequence_norm: ranks meet in a global list"""

PARTS = []


class Meet(Function):
    @staticmethod
    def forward(ctx, p, comm):
        ctx.comm = comm
        return p.view_as(p)

    @staticmethod
    def backward(ctx, grad):
        PARTS.append(grad)
        all_reduce_(ctx.comm, torch.zeros(1))
        total = sum(PARTS[-ctx.comm.size :])
        all_reduce_(ctx.comm, torch.zeros(1))
        return total, None


def sequence_norm(x, weight, bias, comm):
    return F.layer_norm(x, weight.shape, Meet.apply(weight, comm), Meet.apply(bias, comm))
