"""sharded_step: the flag is as long as the gradients"""

def sharded_step(comm, weights, grads, scale, lr):
    found = torch.full((64,), 0.0 if all(g.isfinite().all() for g in grads) else 1.0)
    all_reduce_(comm, found, "max")
    if found.max():
        return scale / 2
    for w, g in zip(weights, grads):
        w -= lr * g / scale
    return scale
