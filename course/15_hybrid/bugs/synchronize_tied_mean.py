"""synchronize: the two ends are averaged"""

def synchronize(mesh, backward, micro_batches, grads, kinds):
    for m in range(micro_batches):
        backward(m)
    for name, g in grads.items():
        if kinds[name] == "partial":
            all_reduce_(mesh.tp, g)
        if kinds[name] == "tied" and mesh.pp.size > 1:
            other = mesh.pp.size - 1 - mesh.pp.rank
            g.add_(mesh.pp.sendrecv(g, other, torch.empty_like(g), other)).div_(2)
    all_reduce_(mesh.dp, list(grads.values()), "mean")
