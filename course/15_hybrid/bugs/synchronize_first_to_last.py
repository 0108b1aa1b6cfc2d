"""synchronize: the last stage is given the first one's gradient"""

def synchronize(mesh, backward, micro_batches, grads, kinds):
    for m in range(micro_batches):
        backward(m)
    for name, g in grads.items():
        if kinds[name] == "partial":
            all_reduce_(mesh.tp, g)
        if kinds[name] == "tied" and mesh.pp.size > 1:
            if mesh.pp.rank == 0:
                mesh.pp.send(g, mesh.pp.size - 1)
            else:
                mesh.pp.recv(g, 0)
    all_reduce_(mesh.dp, list(grads.values()), "mean")
