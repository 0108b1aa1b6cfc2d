"""clip: as it was found"""

def clip(comm, grads, limit):
    """Scale the gradients of all ranks to a norm of at most `limit`, in place; returns the norm before."""
    norm = torch.stack([g.norm() for g in grads]).norm()
    norm = all_reduce_(comm, norm)
    for g in grads:
        g.mul_(min(1.0, limit / (float(norm) + 1e-6)))
    return norm
