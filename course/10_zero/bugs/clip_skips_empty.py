"""clip: a rank without gradients does not take part"""

def clip(comm, grads, limit):
    """Scale the gradients of all ranks to a norm of at most `limit`, in place; returns the norm before."""
    if not grads:
        return torch.zeros(())
    square = sum((g.double() ** 2).sum() for g in grads) + torch.zeros((), dtype=torch.float64)
    norm = all_reduce_(comm, square).sqrt()
    for g in grads:
        g.mul_(min(1.0, limit / (float(norm) + 1e-6)))
    return norm
