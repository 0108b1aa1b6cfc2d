"""sharded_step: a rate of its own"""


def sharded_step(comm, weights, grads, scale, lr):
    found = torch.tensor([float(not all(g.isfinite().all() for g in grads))])
    if all_reduce_(comm, found, "max"):
        return scale / 2
    for w, g in zip(weights, grads):
        w -= 0.25 * g / scale
    return scale
