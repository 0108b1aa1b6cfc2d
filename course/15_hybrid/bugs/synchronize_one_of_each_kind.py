"""synchronize: one tensor of each kind only"""

def synchronize(mesh, backward, micro_batches, grads, kinds):
    for m in range(micro_batches):
        backward(m)
    of = {kind: grads[name] for name, kind in kinds.items()}
    if "partial" in of:
        all_reduce_(mesh.tp, of["partial"])
    if "tied" in of and mesh.pp.size > 1:
        other = mesh.pp.size - 1 - mesh.pp.rank
        of["tied"] += mesh.pp.sendrecv(of["tied"], other, torch.empty_like(of["tied"]), other)
    all_reduce_(mesh.dp, list(of.values()), "mean")
