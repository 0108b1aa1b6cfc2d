"""synchronize: sends float32"""

def synchronize(mesh, backward, micro_batches, grads, kinds):
    for m in range(micro_batches):
        backward(m)
    low = {name: g.float() for name, g in grads.items()}
    for name, g in low.items():
        if kinds[name] == "partial":
            all_reduce_(mesh.tp, g)
        if kinds[name] == "tied" and mesh.pp.size > 1:
            other = mesh.pp.size - 1 - mesh.pp.rank
            g += mesh.pp.sendrecv(g, other, torch.empty_like(g), other)
    all_reduce_(mesh.dp, list(low.values()), "mean")
    for name, g in grads.items():
        g.copy_(low[name])
