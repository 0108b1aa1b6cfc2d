"""clip_copies: gradients get other memory"""


def clip_copies(comm, grads, copied, limit):
    square = torch.zeros((), dtype=torch.float64)
    for g, same in zip(grads, copied):
        if comm.rank == 0 or not same:
            square += (g * g).sum()
    norm = float(all_reduce_(comm, square).sqrt())
    for g in grads:
        g.data = g * (min(1.0, limit / (norm + 1e-6)))
    return norm
