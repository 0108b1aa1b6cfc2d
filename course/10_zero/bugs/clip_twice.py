"""clip: scaled twice"""

def clip(comm, grads, limit):
    square = sum((g ** 2).sum() for g in grads) + torch.zeros((), dtype=torch.float64)
    norm = all_reduce_(comm, square).sqrt()
    for g in grads:
        g.mul_(min(1.0, limit / norm))
        g.mul_(min(1.0, limit / norm))
    return norm
