"""synchronize: new tensors under the old names, not in place"""

def synchronize(mesh, backward, micro_batches, grads, kinds):
    for m in range(micro_batches):
        backward(m)
    for name in grads:
        if kinds[name] == "partial":
            grads[name] = all_reduce_(mesh.tp, grads[name].clone())
        if kinds[name] == "tied" and mesh.pp.size > 1:
            other = mesh.pp.size - 1 - mesh.pp.rank
            grads[name] = grads[name] + mesh.pp.sendrecv(grads[name], other, torch.empty_like(grads[name]), other)
    new = [g.clone() for g in grads.values()]
    all_reduce_(mesh.dp, new, "mean")
    grads.update(zip(grads, new))
