"""lamb_step: gradients that are averaged are divided by n again"""

def lamb_step(comm, weights, grads, means, squares, plain, t, lr, betas, eps, decay):
    """A step of LAMB, in place, on this rank's pieces."""
    updates = []
    for w, g, m, v, free in zip(weights, grads, means, squares, plain):
        g = g / comm.size
        m.mul_(betas[0]).add_((1 - betas[0]) * g)
        v.mul_(betas[1]).add_((1 - betas[1]) * g * g)
        u = m / (1 - betas[0] ** t) / ((v / (1 - betas[1] ** t)).sqrt() + eps)
        updates.append(u if free else u + decay * w)
    sums = torch.stack([torch.stack([(w * w).sum(), (u * u).sum()]) for w, u in zip(weights, updates)])
    all_reduce_(comm, sums)
    for w, u, free, (wide, long) in zip(weights, updates, plain, sums.sqrt().tolist()):
        ratio = 1.0 if free or wide == 0 or long == 0 else wide / long
        w.sub_(lr * ratio * u)
