"""clip_grid: each rank adds up in an order of its own"""

def clip_grid(mesh, grads, kinds, limit):
    square = torch.zeros(1, dtype=torch.float64)
    for name, g in grads.items():
        copy = kinds[name] in ("whole", "partial") and mesh.tp.rank > 0
        end = kinds[name] == "tied" and mesh.pp.rank > 0
        if not copy and not end:
            square += (g * g).sum()
    comm, total = mesh.group("pp", "tp"), square.clone()
    for s in range(1, comm.size):
        to, source = (comm.rank + s) % comm.size, (comm.rank - s) % comm.size
        total += comm.sendrecv(square, to, torch.empty_like(square), source)
    norm = total.sqrt().item()
    for g in grads.values():
        g.mul_(min(1.0, limit / (norm + 1e-6)))
    return norm
