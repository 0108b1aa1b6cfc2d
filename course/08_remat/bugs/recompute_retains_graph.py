"""recompute: the graph of the second run is retained, and kept"""

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
            ctx.y = ctx.fn(x)
        ctx.y.backward(dy, retain_graph=True)
        return None, None, x.grad
