"""clip_copies: squares are added up in float32"""

def clip_copies(comm, grads, copied, limit):
    """Scale all ranks' gradients to a norm of at most `limit`, in place; returns the norm before."""
    square = torch.zeros((), dtype=torch.float32)
    for g, same in zip(grads, copied):
        if comm.rank == 0 or not same:
            square += (g * g).sum().float()
    norm = float(all_reduce_(comm, square).sqrt())
    for g in grads:
        g.mul_(min(1.0, limit / (norm + 1e-6)))
    return norm
