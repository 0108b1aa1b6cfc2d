"""clip_grid: squares vectors only"""

def clip_grid(mesh, grads, kinds, limit):
    square = torch.zeros(1, dtype=torch.float64)
    for name, g in grads.items():
        copy = kinds[name] in ("whole", "partial") and mesh.tp.rank > 0
        end = kinds[name] == "tied" and mesh.pp.rank > 0
        if not copy and not end:
            square += g @ g
    norm = all_reduce_(mesh.group("pp", "tp"), square).sqrt().item()
    for g in grads.values():
        g.mul_(min(1.0, limit / (norm + 1e-6)))
    return norm
