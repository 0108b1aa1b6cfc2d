"""sharded_step: as it was found"""

def sharded_step(comm, weights, grads, scale, lr):
    found = torch.tensor([0.0 if all(g.isfinite().all() for g in grads) else 1.0])
    if found.item():
        return scale / 2
    for w, g in zip(weights, grads):
        w -= lr * g / scale
    return scale
