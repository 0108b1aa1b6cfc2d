"""reduce_from: takes x for one of three dimensions"""

def reduce_from(x, comm):
    return Reduce.apply(x, comm)


class Reduce(Function):
    @staticmethod
    def forward(ctx, x, comm):
        batch, tokens, hidden = x.shape
        return all_reduce_(comm, x.reshape(batch * tokens, hidden).clone()).view(batch, tokens, hidden)

    @staticmethod
    def backward(ctx, grad):
        return grad, None
