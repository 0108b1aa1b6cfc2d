"""clip_grid: each rank clips by its own norm"""

def clip_grid(mesh, grads, kinds, limit):
    norm = float(sum((g * g).sum() for g in grads.values())) ** 0.5
    for g in grads.values():
        g.mul_(min(1.0, limit / (norm + 1e-6)))
    return norm
