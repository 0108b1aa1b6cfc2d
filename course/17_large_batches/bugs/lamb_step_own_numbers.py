"""lamb_step: rate, betas and eps of its own"""

count = {}


def lamb_step(comm, weights, grads, means, squares, plain, t, lr, betas, eps, decay):
    updates = []
    for w, g, m, v, free in zip(weights, grads, means, squares, plain):
        m.mul_(0.8).add_((1 - 0.8) * g)
        v.mul_(0.97).add_((1 - 0.97) * g * g)
        u = m / (1 - 0.8**t) / ((v / (1 - 0.97**t)).sqrt() + 1e-3)
        updates.append(u if free else u + decay * w)
    sums = torch.stack([torch.stack([(w * w).sum(), (u * u).sum()]) for w, u in zip(weights, updates)])
    all_reduce_(comm, sums)
    for w, u, free, (wide, long) in zip(weights, updates, plain, sums.sqrt().tolist()):
        ratio = 1.0 if free or wide == 0 or long == 0 else wide / long
        w.sub_(0.05 * ratio * u)
