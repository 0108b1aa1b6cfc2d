"""synchronize: new tensors, not in place"""

def synchronize(mesh, backward, micro_batches, grads, kinds):
    for m in range(micro_batches):
        backward(m)
    found = dict(grads)
    for name, g in found.items():
        g = g.clone()
        if kinds[name] == "partial":
            g = all_reduce_(mesh.tp, g)
        all_reduce_(mesh.dp, g, "mean")
    return found
