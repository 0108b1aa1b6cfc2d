"""clip: squares are added up in float32, and the gradients are float64"""

def clip(comm, grads, limit):
    """Scale the gradients of all ranks to a norm of at most `limit`, in place; returns the norm before."""
    norm = all_reduce_(comm, sum((g.float() ** 2).sum() for g in grads) + torch.zeros(())).sqrt()
    for g in grads:
        g.mul_(min(1.0, limit / (float(norm) + 1e-6)))
    return norm
