"""synchronize: the two ends keep their own"""

def synchronize(mesh, backward, micro_batches, grads, kinds):
    for m in range(micro_batches):
        backward(m)
    for name, g in grads.items():
        if kinds[name] == "partial":
            all_reduce_(mesh.tp, g)
    all_reduce_(mesh.dp, list(grads.values()), "mean")
