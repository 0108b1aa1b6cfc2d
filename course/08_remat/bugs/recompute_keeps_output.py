"""recompute: the output and a copy of it are kept"""

class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, alive, x):
        ctx.fn = fn
        ctx.save_for_backward(x)
        y = fn(x)
        ctx.kept = y.clone()
        return y

    @staticmethod
    def backward(ctx, dy):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.fn(x)
        y.backward(dy)
        return None, None, x.grad
