"""clip_copies: copies are divided by n² """

def clip_copies(comm, grads, copied, limit):
    """Scale all ranks' gradients to a norm of at most `limit`, in place; returns the norm before."""
    square = torch.zeros((), dtype=torch.float64)
    for g, same in zip(grads, copied):
        square += (g * g).sum() / (comm.size**2 if same else 1)
    norm = float(all_reduce_(comm, square).sqrt())
    for g in grads:
        g.mul_(min(1.0, limit / (norm + 1e-6)))
    return norm
