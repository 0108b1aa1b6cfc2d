"""clip: the factor is limit / norm, which a norm of 0 does not have"""

def clip(comm, grads, limit):
    """Scale the gradients of all ranks to a norm of at most `limit`, in place; returns the norm before."""
    square = sum((g.double() ** 2).sum() for g in grads) + torch.zeros((), dtype=torch.float64)
    norm = all_reduce_(comm, square).sqrt()
    for g in grads:
        g.mul_(min(1.0, limit / float(norm)))
    return norm
