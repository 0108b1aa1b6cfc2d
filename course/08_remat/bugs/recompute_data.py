"""recompute: no gradient for data"""

class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, alive, x):
        ctx.fn = fn
        ctx.save_for_backward(x)
        return fn(x)

    @staticmethod
    def backward(ctx, dy):
        if not ctx.needs_input_grad[2]:
            return None, None, None
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.fn(x)
        y.backward(dy)
        return None, None, x.grad
