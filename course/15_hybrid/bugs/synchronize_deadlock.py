"""synchronize: only the ends send"""

def synchronize(mesh, backward, micro_batches, grads, kinds):
    for m in range(micro_batches):
        backward(m)
    for name, g in grads.items():
        if kinds[name] == "partial":
            all_reduce_(mesh.tp, g)
        if kinds[name] == "tied" and mesh.pp.size > 1:
            other, came = mesh.pp.size - 1 - mesh.pp.rank, torch.empty_like(g)
            mesh.pp.send(g, other)
            mesh.pp.recv(came, other)
            g += came
    all_reduce_(mesh.dp, list(grads.values()), "mean")
