"""recompute: only x gets a gradient"""

class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, alive, x):
        ctx.fn = fn
        ctx.save_for_backward(x)
        return fn(x)

    @staticmethod
    def backward(ctx, dy):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.fn(x)
        return None, None, torch.autograd.grad(y, x, dy)[0]
