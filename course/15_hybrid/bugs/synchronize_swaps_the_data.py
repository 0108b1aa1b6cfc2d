"""synchronize: tensors get other memory, not in place"""

def synchronize(mesh, backward, micro_batches, grads, kinds):
    for m in range(micro_batches):
        backward(m)
    for name, g in grads.items():
        if kinds[name] == "partial":
            g.data = all_reduce_(mesh.tp, g.clone())
        if kinds[name] == "tied" and mesh.pp.size > 1:
            other = mesh.pp.size - 1 - mesh.pp.rank
            g.data = g + mesh.pp.sendrecv(g, other, torch.empty_like(g), other)
    new = [g.clone() for g in grads.values()]
    all_reduce_(mesh.dp, new, "mean")
    for g, x in zip(grads.values(), new):
        g.data = x
