"""clip: all gradients travel"""

def clip(comm, grads, limit):
    """Scale the gradients of all ranks to a norm of at most `limit`, in place; returns the norm before."""
    square = sum((g.double() ** 2).sum() for g in grads) + torch.zeros((), dtype=torch.float64)
    norm = all_gather(comm, torch.cat([*grads, torch.zeros(1, dtype=torch.float64)])).norm()
    for g in grads:
        g.mul_(min(1.0, limit / (float(norm) + 1e-6)))
    return norm
