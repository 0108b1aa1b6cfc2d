"""recompute: backward runs fn without a graph"""

class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, alive, x):
        ctx.fn = fn
        ctx.save_for_backward(x)
        return fn(x)

    @staticmethod
    def backward(ctx, dy):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        y = ctx.fn(x)
        y.backward(dy)
        return None, None, x.grad
