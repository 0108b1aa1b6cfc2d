"""sharded_step: a flag for each tensor"""

def sharded_step(comm, weights, grads, scale, lr):
    for w, g in zip(weights, grads):
        found = torch.tensor([0.0 if g.isfinite().all() else 1.0])
        all_reduce_(comm, found, "max")
        if found.item():
            return scale / 2
        w -= lr * g / scale
    return scale
