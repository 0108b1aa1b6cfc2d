"""lamb_step: not in place"""

def lamb_step(comm, weights, grads, means, squares, plain, t, lr, betas, eps, decay):
    """A step of LAMB, in place, on this rank's pieces."""
    updates = []
    for w, g, m, v, free in zip(weights, grads, means, squares, plain):
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        u = m / (1 - betas[0] ** t) / ((v / (1 - betas[1] ** t)).sqrt() + eps)
        updates.append(u if free else u + decay * w)
    sums = torch.stack([torch.stack([(w * w).sum(), (u * u).sum()]) for w, u in zip(weights, updates)])
    all_reduce_(comm, sums)
    for w, u, free, (wide, long) in zip(weights, updates, plain, sums.sqrt().tolist()):
        ratio = 1.0 if free or wide == 0 or long == 0 else wide / long
        w = w - lr * ratio * u
