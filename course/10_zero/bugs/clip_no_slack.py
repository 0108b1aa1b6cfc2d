"""clip: the factor is limit / norm, and 1 for a norm of 0; the 1e-6 is missing"""

def clip(comm, grads, limit):
    """Scale the gradients of all ranks to a norm of at most `limit`, in place; returns the norm before."""
    square = sum((g.double() ** 2).sum() for g in grads) + torch.zeros((), dtype=torch.float64)
    norm = all_reduce_(comm, square).sqrt()
    for g in grads:
        g.mul_(limit / max(limit, float(norm)))
    return norm
