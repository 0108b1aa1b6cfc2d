"""bias_gelu: no_grad around apply"""

class BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, b):
        ctx.save_for_backward(x, b)
        return F.gelu(x + b)

    @staticmethod
    def backward(ctx, dy):
        x, b = ctx.saved_tensors
        z = x + b
        density = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        dx = dy * ((1 + torch.erf(z * math.sqrt(0.5))) / 2 + z * density)
        return dx, dx.reshape(-1, dx.shape[-1]).sum(0)


def bias_gelu(x, b):
    with torch.no_grad():
        return BiasGelu.apply(x, b)
