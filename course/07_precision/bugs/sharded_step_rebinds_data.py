"""sharded_step: weights get other memory"""


def sharded_step(comm, weights, grads, scale, lr):
    found = torch.tensor([float(not all(g.isfinite().all() for g in grads))])
    if all_reduce_(comm, found, "max"):
        return scale / 2
    for w, g in zip(weights, grads):
        w.data = w - lr * g / scale
    return scale
