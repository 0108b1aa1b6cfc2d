"""clip_grid: as it was found"""

def clip_grid(mesh, grads, kinds, limit):
    square = sum((g * g).sum() for g in grads.values()).reshape(1)
    norm = all_reduce_(mesh.comm, square).sqrt().item()
    for g in grads.values():
        g.mul_(min(1.0, limit / (norm + 1e-6)))
    return norm
