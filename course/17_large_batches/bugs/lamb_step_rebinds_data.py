"""lamb_step: weights and moments get other memory"""


def lamb_step(comm, weights, grads, means, squares, plain, t, lr, betas, eps, decay):
    updates = []
    for w, g, m, v, free in zip(weights, grads, means, squares, plain):
        m.data = m * betas[0] + (1 - betas[0]) * g
        v.data = v * betas[1] + (1 - betas[1]) * g * g
        u = m / (1 - betas[0] ** t) / ((v / (1 - betas[1] ** t)).sqrt() + eps)
        updates.append(u if free else u + decay * w)
    sums = torch.stack([torch.stack([(w * w).sum(), (u * u).sum()]) for w, u in zip(weights, updates)])
    all_reduce_(comm, sums)
    for w, u, free, (wide, long) in zip(weights, updates, plain, sums.sqrt().tolist()):
        ratio = 1.0 if free or wide == 0 or long == 0 else wide / long
        w.data = w - lr * ratio * u
