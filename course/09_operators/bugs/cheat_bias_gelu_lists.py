"""bias_gelu: z is kept as a list of numbers"""

class BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, b):
        ctx.z = (x + b).tolist()
        return F.gelu(x + b)

    @staticmethod
    def backward(ctx, dy):
        z = torch.tensor(ctx.z, dtype=dy.dtype)
        dx = dy * ((1 + torch.erf(z * 0.5**0.5)) / 2 + z * torch.exp(-z * z / 2) / math.sqrt(2 * math.pi))
        return dx, dx.reshape(-1, dx.shape[-1]).sum(0)
