"""synchronize: goes by names, not by kinds"""

def synchronize(mesh, backward, micro_batches, grads, kinds):
    for m in range(micro_batches):
        backward(m)
    for name, g in grads.items():
        if name.endswith("norm"):
            all_reduce_(mesh.tp, g)
        if name == "tokens" and mesh.pp.size > 1:
            other = mesh.pp.size - 1 - mesh.pp.rank
            g += mesh.pp.sendrecv(g, other, torch.empty_like(g), other)
    all_reduce_(mesh.dp, list(grads.values()), "mean")
