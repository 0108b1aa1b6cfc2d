"""clip_grid: whole gradients are sent"""

def clip_grid(mesh, grads, kinds, limit):
    square = torch.zeros(1, dtype=torch.float64)
    replica = mesh.group("pp", "tp")
    for name, g in grads.items():
        if not (kinds[name] in ("whole", "partial") and mesh.tp.rank) and not (kinds[name] == "tied" and mesh.pp.rank):
            square += (g * g).sum()
    room = torch.zeros(1000, dtype=torch.float64)
    room[0] = square
    norm = all_reduce_(replica, room)[0].sqrt().item()
    for g in grads.values():
        g.mul_(min(1.0, limit / (norm + 1e-6)))
    return norm
