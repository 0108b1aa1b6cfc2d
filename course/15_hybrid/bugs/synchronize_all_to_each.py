"""synchronize: everything to everyone, where a ring sends chunks"""

def exchange(comm, x):
    parts, n, r = [x.clone() for _ in range(comm.size)], comm.size, comm.rank
    for s in range(1, n):
        comm.sendrecv(x, (r + s) % n, parts[(r - s) % n], (r - s) % n)
    return sum(parts)


def synchronize(mesh, backward, micro_batches, grads, kinds):
    for m in range(micro_batches):
        backward(m)
    for name, g in grads.items():
        if kinds[name] == "partial":
            g.copy_(exchange(mesh.tp, g))
        if kinds[name] == "tied" and mesh.pp.size > 1:
            other = mesh.pp.size - 1 - mesh.pp.rank
            g += mesh.pp.sendrecv(g, other, torch.empty_like(g), other)
    flat = exchange(mesh.dp, torch.cat([g.flatten() for g in grads.values()])) / mesh.dp.size
    for g, part in zip(grads.values(), flat.split([g.numel() for g in grads.values()])):
        g.copy_(part.view_as(g))
