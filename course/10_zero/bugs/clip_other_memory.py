"""clip: gradients get other memory by g.data; whoever holds views of them sees nothing"""

def clip(comm, grads, limit):
    """Scale the gradients of all ranks to a norm of at most `limit`, in place; returns the norm before."""
    square = sum((g.double() ** 2).sum() for g in grads) + torch.zeros((), dtype=torch.float64)
    norm = all_reduce_(comm, square).sqrt()
    for g in grads:
        g.data = g * min(1.0, limit / (float(norm) + 1e-6))
    return norm
