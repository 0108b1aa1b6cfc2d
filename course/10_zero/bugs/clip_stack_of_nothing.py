"""clip: a rank without gradients"""

def clip(comm, grads, limit):
    norm = torch.stack([g.norm() for g in grads]).norm()
    norm = all_reduce_(comm, norm ** 2) ** 0.5
    for g in grads:
        g.mul_(min(1.0, limit / (float(norm) + 1e-6)))
    return norm
