"""synchronize: everything to everyone, and each rank adds up in an order of its own"""

def exchange(comm, x):
    own, n, r = x.clone(), comm.size, comm.rank
    for s in range(1, n):
        x += comm.sendrecv(own, (r + s) % n, torch.empty_like(own), (r - s) % n)


def synchronize(mesh, backward, micro_batches, grads, kinds):
    for m in range(micro_batches):
        backward(m)
    for name, g in grads.items():
        if kinds[name] == "partial":
            exchange(mesh.tp, g)
        if kinds[name] == "tied" and mesh.pp.size > 1:
            other = mesh.pp.size - 1 - mesh.pp.rank
            g += mesh.pp.sendrecv(g, other, torch.empty_like(g), other)
    flat = torch.cat([g.flatten() for g in grads.values()])
    exchange(mesh.dp, flat)
    flat /= mesh.dp.size
    for g, part in zip(grads.values(), flat.split([g.numel() for g in grads.values()])):
        g.copy_(part.view_as(g))
