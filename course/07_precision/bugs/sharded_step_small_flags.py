"""sharded_step: a flag of one byte for each tensor"""

def sharded_step(comm, weights, grads, scale, lr):
    found = torch.zeros(2, dtype=torch.uint8)
    for i, g in enumerate(grads):
        found[i] = not g.isfinite().all()
    for i in range(2):
        all_reduce_(comm, found[i : i + 1], "max")
    if found.any():
        return scale / 2
    for w, g in zip(weights, grads):
        w -= lr * g / scale
    return scale
