"""sharded_step: only who has found it halves the scale"""

def sharded_step(comm, weights, grads, scale, lr):
    mine = not all(g.isfinite().all() for g in grads)
    found = torch.tensor([0.0 if all(g.isfinite().all() for g in grads) else 1.0])
    all_reduce_(comm, found, "max")
    if found.item():
        return scale / 2 if mine else scale
    for w, g in zip(weights, grads):
        w -= lr * g / scale
    return scale
