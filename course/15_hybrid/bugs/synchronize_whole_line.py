"""synchronize: the middle stages take part in the tied sum"""

def synchronize(mesh, backward, micro_batches, grads, kinds):
    for m in range(micro_batches):
        backward(m)
    for name, g in grads.items():
        if kinds[name] == "partial":
            all_reduce_(mesh.tp, g)
    tied = grads.get("tokens")
    if mesh.pp.size > 1:
        size = torch.tensor([0 if tied is None else tied.numel()])
        all_reduce_(mesh.pp, size, "max")
        g = torch.zeros(int(size), dtype=torch.float64) if tied is None else tied.flatten()
        all_reduce_(mesh.pp, g)
        if tied is not None:
            tied.copy_(g.view_as(tied))
    all_reduce_(mesh.dp, list(grads.values()), "mean")
