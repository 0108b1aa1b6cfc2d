"""sharded_step: a rank without parameters does not take part"""

def sharded_step(comm, weights, grads, scale, lr):
    if not weights:
        return scale
    found = torch.tensor([0.0 if all(g.isfinite().all() for g in grads) else 1.0])
    all_reduce_(comm, found, "max")
    if found.item():
        return scale / 2
    for w, g in zip(weights, grads):
        w -= lr * g / scale
    return scale
